package harness

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"pgregory.net/rapid"

	"headroom/memory"
	"headroom/recovery"
)

// TestEverySampleOnce checks runs in which random allocations fail, other
// processes hold memory, and interrupts arrive. A run may give up; it is then
// started again. Once the run is done, every step must have used exactly the
// effective batch, every epoch must contain each sample once, and the metrics
// must agree.
func TestEverySampleOnce(t *testing.T) {
	root, n := t.TempDir(), 0
	rapid.Check(t, func(r *rapid.T) {
		n++
		effective := rapid.IntRange(1, 70).Draw(r, "effective")
		steps := rapid.IntRange(1, 12).Draw(r, "steps")
		plan := recovery.Plan{Effective: effective, World: 1, Micro: rapid.IntRange(0, effective).Draw(r, "micro")}
		j := newJourney(t, plan, steps)
		j.dir = filepath.Join(root, strconv.Itoa(n))
		defer func() {
			if err := os.RemoveAll(j.dir); err != nil {
				r.Error(err)
			}
		}()
		j.options.CheckpointEvery = rapid.IntRange(0, 4).Draw(r, "every")
		j.options.Policy.GrowAfter = rapid.IntRange(0, 3).Draw(r, "grow after")
		j.options.Policy.Recompute = rapid.Bool().Draw(r, "recompute")
		fails := rapid.SliceOfN(rapid.IntRange(0, 9), 1, 60).Draw(r, "fails")
		j.lab.allocFails = func(n int) bool { return n < len(fails) && fails[n] == 0 }
		held := rapid.SliceOfN(rapid.IntRange(0, 19), 1, 12).Draw(r, "held")
		j.lab.foreign = func(step int) memory.Bytes { return memory.Bytes(held[step%len(held)]) * memory.GiB }
		for range 3 {
			interrupted := make(chan struct{})
			at := rapid.IntRange(0, 2*steps).Draw(r, "interrupted at")
			j.options.Interrupt = interrupted
			j.options.BeforeStep = func(finished int) {
				if finished == at && j.options.Interrupt != nil {
					j.options.Interrupt = nil
					close(interrupted)
				}
			}
			_, err := j.run(context.Background())
			if gaveUp := (*GaveUpError)(nil); err != nil && !errors.Is(err, ErrInterrupted) && !errors.As(err, &gaveUp) {
				r.Fatal(err)
			}
		}
		j.options.Interrupt, j.options.BeforeStep = nil, nil
		j.lab.allocFails, j.lab.foreign = nil, nil
		if result := j.mustRun(); result.Steps != steps {
			r.Fatalf("%+v", result)
		}
		j.account(steps)
	})
}
