package worker

import (
	"fmt"
	"strings"
	"testing"

	"headroom/memory"
	"headroom/recovery"
)

// night simulates steps of a process on a device of a given capacity, on which a piece
// of n rows needs base + n GiB. It records the outcomes: "40! 20 20" means a failure
// with 40 rows and then two steps with 20.
type night struct {
	*Pieces
	said []string
	step int
}

func (n *night) steps(count, rows int, capacity, base memory.Bytes) *night {
	for range count {
		micro := rows
		if limit := n.Limit(); limit > 0 {
			micro = min(rows, limit)
		}
		for {
			need := base + memory.Bytes(micro)*gib
			if need <= capacity {
				break
			}
			stats := memory.Stats{Capacity: capacity, Reserved: capacity - gib/2, Allocated: capacity - gib/2, Free: gib / 2}
			d := n.Failed(memory.OutOfMemoryError{Requested: gib, Phase: memory.PhaseForward, Micro: micro, Stats: stats}, rows)
			n.said = append(n.said, fmt.Sprintf("%d!", micro))
			if d.Remedy == recovery.Stop {
				n.said = append(n.said, "stop")
				return n
			}
			micro = n.Rows()
		}
		n.step++
		n.said = append(n.said, fmt.Sprint(micro))
		peak := base + memory.Bytes(micro)*gib
		n.Finished(n.step, rows, (rows+micro-1)/micro, memory.Stats{Capacity: capacity, Free: capacity - peak, Reserved: peak, Peak: peak, Allocated: base})
	}
	return n
}

func TestPieces(t *testing.T) {
	for name, c := range map[string]struct {
		limit int
		play  func(*night)
		want  string
	}{
		"fits":                    {0, func(n *night) { n.steps(3, 8, 24*gib, gib) }, "8 8 8"},
		"halves":                  {0, func(n *night) { n.steps(3, 40, 24*gib, gib) }, "40! 20 20 20"},
		"halves twice":            {0, func(n *night) { n.steps(2, 40, 12*gib, gib) }, "40! 20! 10 10"},
		"what was learned":        {20, func(n *night) { n.steps(2, 40, 24*gib, gib) }, "20 20"},
		"a limit beyond the call": {64, func(n *night) { n.steps(2, 8, 24*gib, gib) }, "8 8"},
		"one row does not fit":    {0, func(n *night) { n.steps(2, 4, 2*gib, 3*gib) }, "4! 2! 1! stop"},
		"a longer call":           {0, func(n *night) { n.steps(2, 8, 24*gib, gib).steps(2, 64, 24*gib, gib) }, "8 8 64! 32! 16 16"},
		"a shorter last call":     {0, func(n *night) { n.steps(1, 40, 24*gib, gib).steps(1, 7, 24*gib, gib).steps(1, 40, 24*gib, gib) }, "40! 20 7 20"},
	} {
		t.Run(name, func(t *testing.T) {
			n := &night{Pieces: NewPieces(c.limit)}
			c.play(n)
			if got := strings.Join(n.said, " "); got != c.want {
				t.Errorf("%s\nwant %s", got, c.want)
			}
		})
	}
}

// TestPiecesGrowBack checks that a limit is lifted once the other processes on the device, whose
// memory made the limit necessary, are gone.
func TestPiecesGrowBack(t *testing.T) {
	n := &night{Pieces: NewPieces(0)}
	n.steps(growAfter, 40, 24*gib, gib)
	if n.Limit() != 20 {
		t.Fatalf("limit %d", n.Limit())
	}
	n.steps(growAfter, 40, 80*gib, gib)
	if n.Limit() != 40 {
		t.Errorf("limit %d after others have left", n.Limit())
	}
}

// TestSameAgain checks that, after a failure that its numbers do not explain, the same
// number of rows is tried again, but only once per step, and that no limit is set.
func TestSameAgain(t *testing.T) {
	p := NewPieces(0)
	f := memory.OutOfMemoryError{Requested: gib, Phase: memory.PhaseForward, Micro: 8,
		Stats: memory.Stats{Capacity: 24 * gib, Reserved: 20 * gib, Allocated: 20 * gib, Free: 4 * gib}}
	if d := p.Failed(f, 8); d.Remedy != recovery.EmptyCache || p.Rows() != 8 || p.Limit() != 0 {
		t.Errorf("%+v", d)
	}
	if d := p.Failed(f, 8); d.Remedy == recovery.EmptyCache || p.Rows() >= 8 {
		t.Errorf("%+v", d)
	}
	f = memory.OutOfMemoryError{Requested: gib, Phase: memory.PhaseUpdate, Stats: memory.Stats{Capacity: 24 * gib, Reserved: 24 * gib, Allocated: 24 * gib}}
	p = NewPieces(0)
	if d := p.Failed(f, 0); d.Remedy != recovery.EmptyCache {
		t.Errorf("in the optimizer's step: %+v", d)
	}
	if d := p.Failed(f, 0); d.Remedy != recovery.Stop || d.Verdict.Cause != memory.Model {
		t.Errorf("in the optimizer's step, again: %+v", d)
	}
}

// TestDeviceWithoutNumbers checks that a failure of the CPU's allocator, which reports
// only the requested amount, contains enough for a decision.
func TestDeviceWithoutNumbers(t *testing.T) {
	p := NewPieces(0)
	d := p.Failed(memory.OutOfMemoryError{Requested: 3 * gib, Phase: memory.PhaseBackward, Micro: 16}, 16)
	if d.Remedy != recovery.Shrink || p.Rows() != 8 || d.Reason != "at most 8 of 16 rows at once from now on: micro-batch 16 needs at least 3 GiB more than is available" {
		t.Errorf("%+v", d)
	}
	if d := NewPieces(0).Failed(memory.OutOfMemoryError{Phase: memory.PhaseForward, Micro: 16}, 16); d.Remedy != recovery.Stop {
		t.Errorf("with no number at all: %+v", d)
	}
}
