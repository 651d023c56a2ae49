package child

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// recorder records the output of both streams in the tail and in the log. Output waits a
// moment before it is written to the log. A child that prints little is therefore not
// held up by a slow disk, and a child that prints a lot does not cost a call per line.
type recorder struct {
	log     io.Writer // may be nil
	trouble func(error)

	mu   sync.Mutex // guards the fields up to late
	tail *tail

	held  []byte    // output of stderr that is not in the tail yet
	since time.Time // when the first byte of held came

	waiting []byte      // output that is not in the log yet, in order
	late    *time.Timer // calls flush; it runs while waiting has output

	writing sync.Mutex // guards the log and the fields below; locked before mu
	failed  bool       // writing to the log failed, and that was reported
	written []byte     // a buffer to use again
}

// gathering is how long output waits for more before it is written to the log. Output of
// a chunk or more does not wait.
const gathering = 10 * time.Millisecond

func newRecorder(o Options) *recorder {
	r := &recorder{log: o.Log, tail: newTail(o.TailBytes), trouble: o.Trouble}
	r.late = time.AfterFunc(gathering, r.flush)
	return r
}

// heldFor is how long output on stderr waits for earlier output on stdout before it is
// added to the tail. Two pipes have no common order, and on a busy machine one of them
// lags. Without the wait, the last steps before a failure would look like steps after it.
const heldFor = 200 * time.Millisecond

// remember adds p, which arrived at now, to the tail. It holds output on stderr back, and
// adds it after any output on stdout that arrives within heldFor.
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

// add records output of a stream, 0 or 1. A nil recorder records nothing.
func (r *recorder) add(stream int, p []byte) {
	if r == nil {
		return
	}
	if r.take(stream, p) >= chunk {
		r.flush()
	}
}

// take records p, and returns how many bytes are waiting for the log.
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

// flush writes the waiting output to the log.
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
