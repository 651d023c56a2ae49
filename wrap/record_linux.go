package wrap

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// recorder takes down what both streams bring. The log gets it in large pieces, and
// soon: then a disk that hangs for a moment holds up no child that prints little, and
// one that prints much is spared a call for every line.
type recorder struct {
	log     io.Writer // nil if there is none
	trouble func(error)

	mu   sync.Mutex
	tail *tail

	held  []byte    // of stderr, not in the tail yet
	since time.Time // when the first byte of it came

	waiting []byte      // for the log, in order
	late    *time.Timer // runs while something waits

	writing sync.Mutex // guards what follows, and the log; locked before mu
	failed  bool       // writing did, and trouble was told
	written []byte     // to be filled anew
}

// gathering is how long output waits for more, unless there is a chunk of it.
const gathering = 10 * time.Millisecond

func newRecorder(o ChildOptions) *recorder {
	r := &recorder{log: o.Log, tail: newTail(o.TailBytes), trouble: o.Trouble}
	r.late = time.AfterFunc(gathering, r.flush)
	return r
}

// heldFor is how much later than an error what stdout said before it may be read: two
// pipes have no common order, and on a busy machine one of them waits. Without it the
// last steps before a failure look like steps after it.
const heldFor = 200 * time.Millisecond

// remember takes p into the tail. What stderr brings goes behind what stdout brings
// soon afterwards.
func (r *recorder) remember(stream int, p []byte, now time.Time) {
	if len(r.held) > 0 && (now.Sub(r.since) > heldFor || len(r.held) > chunk) {
		r.tail.add(1, r.held)
		r.held = r.held[:0]
	}
	if stream == 0 {
		r.tail.add(0, p)
		return
	}
	if len(r.held) == 0 {
		r.since = now
	}
	r.held = append(r.held, p...)
}

func (r *recorder) add(stream int, p []byte) {
	if r.take(stream, p) >= chunk {
		r.flush()
	}
}

// take returns how much waits for the log.
func (r *recorder) take(stream int, p []byte) (waiting int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.remember(stream, p, time.Now())
	if r.log == nil {
		return 0
	}
	if len(r.waiting) == 0 {
		r.late.Reset(gathering)
	}
	r.waiting = append(r.waiting, p...)
	return len(r.waiting)
}

// flush gives the log what waits for it.
func (r *recorder) flush() {
	r.writing.Lock()
	defer r.writing.Unlock()
	r.mu.Lock()
	p := r.waiting
	r.waiting = r.written[:0]
	r.mu.Unlock()
	r.written = p
	if len(p) == 0 {
		return
	}
	if _, err := r.log.Write(p); err != nil && !r.failed { // tried again: the disk may have room by then
		r.failed = true
		r.trouble(fmt.Errorf("the log of the command has gaps: %w", err))
	}
}

func (r *recorder) bytes() []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tail.add(1, r.held)
	r.held = nil
	return r.tail.bytes()
}
