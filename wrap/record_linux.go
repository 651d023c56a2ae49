package wrap

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// recorder records the output of both streams. The log gets it in large pieces, and
// soon: that way a disk that hangs for a moment holds up no child that prints little,
// and a child that prints a lot does not cost a call for every line.
type recorder struct {
	log     io.Writer // nil if there is none
	trouble func(error)

	mu   sync.Mutex
	tail *tail

	held  []byte    // from stderr, not in the tail yet
	since time.Time // when the first byte of it came

	waiting []byte      // for the log, in order
	late    *time.Timer // runs while something waits

	writing sync.Mutex // guards what follows, and the log; locked before mu
	failed  bool       // writing to the log failed, and that was reported
	written []byte     // a buffer to use again
}

// gathering is how long output waits for more before it is written, unless there is a
// chunk of it already.
const gathering = 10 * time.Millisecond

func newRecorder(o ChildOptions) *recorder {
	r := &recorder{log: o.Log, tail: newTail(o.TailBytes), trouble: o.Trouble}
	r.late = time.AfterFunc(gathering, r.flush)
	return r
}

// heldFor is how long stderr's output waits for what stdout said before it: two pipes have no
// common order, and on a busy machine one of them lags. Without it, the last steps before a failure
// would look like steps after it.
const heldFor = 200 * time.Millisecond

// remember adds p to the tail. Output of stderr is held back, and added after
// output of stdout that arrives soon afterwards.
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

// take records p, and returns how many bytes wait for the log.
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

// flush writes what waits for the log.
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
	if _, err := r.log.Write(p); err != nil && !r.failed { // later writes are still tried: the disk may have room by then
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
