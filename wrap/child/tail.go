package child

import (
	"bytes"
	"slices"
)

// tail keeps the newest output of two streams in constant memory, in the order in which it
// came. A line is added when it is complete or huge, so that no line of the other stream
// lands within it. tail is not safe for concurrent use.
type tail struct {
	ring    []byte    // its capacity is the limit plus one byte, which shows whether the byte after it begins a line
	next    int       // where the next byte goes if the ring is full
	pending [2][]byte // the incomplete line of each stream
}

// hugeLine is the length in bytes beyond which a line is added before its end: a progress
// bar can be a single line for an hour.
const hugeLine = 4 << 10

// newTail returns a tail that keeps the newest n bytes, or 1 byte if n is less than 1.
func newTail(n int) *tail { return &tail{ring: make([]byte, 0, max(1, n)+1)} }

// add adds p, which was written to the given stream, 0 or 1. It does not keep p itself.
func (t *tail) add(stream int, p []byte) {
	wait := &t.pending[stream]
	far := max(0, len(p)-hugeLine) // searching backwards is slow, and a line that begins before far is huge anyway
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

// keep appends p to the ring, and drops the oldest bytes if the ring is full.
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

// bytes adds the incomplete lines and returns the tail. It begins with a whole line unless
// the first line is huge. The result belongs to the caller.
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
