package job

import (
	"context"
	"errors"
	"testing"

	"headroom/harness"
	"headroom/memory"
	"headroom/recovery"
	"headroom/worker"
)

// machineOf returns trials of a step that needs base bytes and each bytes for a row, in capacity bytes; unused is how
// much of that something else takes once more than one size has been tried.
func machineOf(rows, times int, whole bool, base, each, capacity, unused memory.Bytes) (*worker.Trials, *rowSeeker) {
	trials := &worker.Trials{Rows: rows, Times: times, Whole: whole, Device: "cpu", Capacity: capacity, Held: base}
	s := &rowSeeker{ctx: context.Background(), held: base}
	s.try = func(_ context.Context, n int) (worker.Trial, error) {
		room := capacity
		if len(s.tried) > 1 {
			room -= unused
		}
		peak := base + memory.Bytes(n)*each
		return worker.Trial{Rows: n, Fits: peak <= room, Peak: peak, Capacity: room, Seconds: 0.1 + float64(n)/100}, nil
	}
	return trials, s
}

// TestSeekRows checks the largest number of rows, the sizes that were tried for it, and what is recommended.
func TestSeekRows(t *testing.T) {
	for name, c := range map[string]struct {
		rows, times    int
		whole          bool
		base, each     memory.Bytes
		unused         memory.Bytes
		largest, tried int
		recommended    int
	}{
		"the batch fits many times":       {8, 1, true, 1000, 10, 0, 900, 5, 8},
		"accumulated":                     {8, 100, true, 1000, 10, 0, 900, 5, 800},
		"no divisor leaves enough":        {7, 101, true, 1000, 10, 0, 900, 5, 707},
		"the largest divisor":             {8, 1000, true, 1000, 10, 0, 900, 5, 800},
		"it did not fit":                  {2000, 1, false, 1000, 10, 0, 900, 5, 500},
		"the optimizer's state is missed": {950, 1, true, 1000, 10, 0, 900, 6, 475},
		"something else takes memory":     {8, 1, true, 1000, 10, 300, 862, 7, 8},
	} {
		t.Run(name, func(t *testing.T) {
			trials, s := machineOf(c.rows, c.times, c.whole, c.base, c.each, 10000, c.unused)
			f, err := s.seek(trials, 0.08)
			if err != nil {
				t.Fatal(err)
			}
			if f.Largest != c.largest || len(f.Tried) > c.tried {
				t.Errorf("largest %d, want %d, of %d sizes: %+v", f.Largest, c.largest, len(f.Tried), f.Tried)
			}
			want := recovery.Plan{Effective: c.rows * c.times, World: 1, Micro: c.recommended}
			if f.Recommended != want {
				t.Errorf("recommended %v, want %v: %s", f.Recommended, want, f.Reason)
			}
		})
	}
}

// TestNoRowsFit checks the error where nothing fits.
func TestNoRowsFit(t *testing.T) {
	trials, s := machineOf(8, 1, false, 1000, 10000, 10000, 0)
	_, err := s.seek(trials, 0.08)
	if gave := (*harness.GaveUpError)(nil); !errors.As(err, &gave) || gave.Decision.Reason != "not even 2 rows fit" {
		t.Error(err)
	}
}
