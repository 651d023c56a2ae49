package wrap

import (
	"bytes"
	"slices"
)

// tail keeps the newest output of two streams in constant memory, in the order in which it
// came. Lines are kept whole: a line that is still being written waits outside, unless it
// is huge, so that lines of the other stream do not land in it. Not safe for concurrent
// use.
type tail struct {
	ring    []byte // its capacity is the limit plus one byte, which shows whether a line begins after it
	next    int    // where the next byte goes, once the ring is full
	pending [2][]byte
}

// hugeLine is the length beyond which the end of a line is no longer waited for: a progress bar can
// be one line for an hour.
const hugeLine = 4 << 10

// newTail keeps n bytes, at least 1.
func newTail(n int) *tail { return &tail{ring: make([]byte, 0, max(1, n)+1)} }

// add takes what a stream, 0 or 1, has written. p is not kept.
func (t *tail) add(stream int, p []byte) {
	wait := &t.pending[stream]
	far := max(0, len(p)-hugeLine) // looking backwards is slow, and further back it is huge anyway
	if end := far + bytes.LastIndexByte(p[far:], '\n') + 1; end > far {
		t.keep(*wait)
		t.keep(p[:end])
		*wait, p = (*wait)[:0], p[end:]
	}
	if len(*wait)+len(p) > hugeLine {
		t.keep(*wait)
		t.keep(p)
		*wait = (*wait)[:0]
		return
	}
	*wait = append(*wait, p...)
}

// keep appends to the ring and drops what is oldest.
func (t *tail) keep(p []byte) {
	if over := len(p) - cap(t.ring); over > 0 {
		p = p[over:]
	}
	if room := cap(t.ring) - len(t.ring); room > 0 {
		n := min(room, len(p))
		t.ring, p = append(t.ring, p[:n]...), p[n:]
	}
	for len(p) > 0 {
		n := copy(t.ring[t.next:], p)
		t.next, p = (t.next+n)%len(t.ring), p[n:]
	}
}

// bytes ends the lines that were still being written and returns what is kept,
// beginning with a whole line unless that one is huge. The result belongs to the caller.
func (t *tail) bytes() []byte {
	for i := range t.pending {
		t.keep(t.pending[i])
		t.pending[i] = nil
	}
	all := slices.Concat(t.ring[t.next:], t.ring[:t.next])
	if len(all) < cap(t.ring) { // nothing was dropped
		return all
	}
	if cut := bytes.IndexByte(all, '\n') + 1; cut > 0 && cut <= hugeLine {
		return all[cut:]
	}
	return all[1:]
}
