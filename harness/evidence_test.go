package harness

import (
	"slices"
	"testing"

	"headroom/memory"
)

func TestEvidence(t *testing.T) {
	seen := NewEvidence(memory.Stats{Capacity: 1000})
	small := plan64.WithMicro(8)
	for i := range memory.LeakWindow + 50 {
		seen.Add(plan64, memory.Stats{Allocated: memory.Bytes(i), Peak: 500})
	}
	for _, peak := range []memory.Bytes{90, 10, 20, 30, 80} {
		seen.Add(small, memory.Stats{Allocated: 999, Peak: peak})
	}
	e := seen.Of(memory.OutOfMemoryError{Requested: 7}, small, 2)
	if e.Typical != 30 || e.Like != 5 || e.MinMicro != 2 || e.Baseline.Capacity != 1000 || e.Failure.Requested != 7 {
		t.Errorf("%+v", e)
	}
	if n := len(e.Boundary); n != memory.LeakWindow || e.Boundary[0] != 55 || e.Boundary[n-6] != memory.LeakWindow+49 || e.Boundary[n-1] != 999 || !slices.IsSorted(e.Boundary) {
		t.Errorf("boundaries %v", e.Boundary)
	}
	if e := seen.Of(memory.OutOfMemoryError{}, plan64, 1); e.Like != peaksKept || e.Typical != 500 {
		t.Errorf("%d like it, typical %v", e.Like, e.Typical)
	}
	if e := seen.Of(memory.OutOfMemoryError{}, plan64.WithMicro(3), 1); e.Like != 0 || e.Typical != 0 {
		t.Errorf("a plan that never ran: %+v", e)
	}
}
