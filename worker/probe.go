package worker

import (
	"context"

	"headroom/memory"
	"headroom/recovery"
)

// search has the process try sizes.
func (t *talk) search(f told) (recovery.Decision, error) {
	most := max(1, f.failure.Micro-1)
	if d := f.decision; d.Plan.Micro > 0 {
		most = d.Plan.Micro
	}
	failure := f.failure
	if failure.Stats.Capacity <= 0 {
		failure.Stats = full(failure)
	}
	r, err := t.pieces.Search(t.life.ctx, failure, most, t.probe)
	if err != nil && r.Fits == 0 && r.Fails == 0 {
		return recovery.Decision{}, err
	}
	return t.pieces.Searched(failure, r), nil
}

// probe has the process try so many rows at once.
func (t *talk) probe(_ context.Context, rows int) (memory.Bytes, error) {
	if err := t.say(answer{Type: "probe", Rows: rows}); err != nil {
		return 0, err
	}
	for {
		m, err := t.next()
		switch {
		case err != nil:
			return 0, err
		case m.Type != "probe" || m.Rows != rows:
			if err := t.aside(m); err != nil {
				return 0, err
			}
		case m.Fits:
			return m.Peak, nil
		default:
			return 0, &memory.OutOfMemoryError{Phase: m.Phase, Micro: rows, Requested: m.Requested, Stats: m.stats()}
		}
	}
}

// aside takes what a process says in the middle of a search.
func (t *talk) aside(m message) error {
	switch m.Type {
	case "note":
		t.note(m)
	case "bye", "oom", "hello":
		return errSilent // it has lost its place
	}
	return nil
}
