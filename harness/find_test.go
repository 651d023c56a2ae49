package harness

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"headroom/memory"
	"headroom/recovery"
	"headroom/runs"
)

// coarse is a trainer on which some sizes fit in a probe but not in a whole step. A step
// fails if its micro-batch is larger than most, or if it has several micro-batches that
// are larger than cut.
type coarse struct {
	*toy
	most, cut int
}

func (c *coarse) Step(ctx context.Context, p recovery.Plan) (runs.StepReport, error) {
	if n := p.Largest(); n > c.most || p.Accumulation() > 1 && n > c.cut {
		return runs.StepReport{}, &memory.OutOfMemoryError{Requested: memory.GiB, Stats: c.lab.stats(1, c.lab.device), Phase: memory.PhaseForward, Micro: n}
	}
	return c.toy.Step(ctx, p)
}

// TestFindStepsDown checks that the plan that Find recommends has run in whole steps, and
// that Find does not give up because a whole step does not fit.
func TestFindStepsDown(t *testing.T) {
	for _, c := range []struct {
		name             string
		most, cut        int
		largest, planned int // the largest sizes expected: of the micro-batch that fits, and of the plan
	}{
		{"everything holds", 64, 64, 40, 40},
		{"the largest does not hold", 30, 30, 30, 30},
		{"the plan does not hold", 64, 20, 40, 20},
	} {
		lab := newLab()
		clock := time.Unix(1e9, 0)
		trials := 0
		found, err := Find(context.Background(), &coarse{&toy{lab: lab}, c.most, c.cut}, FindOptions{
			Plan: recovery.Plan{Effective: 128, World: 1}, Policy: recovery.Policy{},
			Now:     func() time.Time { clock = clock.Add(time.Millisecond); return clock },
			OnEntry: func(e runs.Entry) { trials++ },
		})
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if found.Largest.Micro > c.largest || found.Largest.Micro < c.planned/2 || found.Recommended.Largest() > c.planned || found.Recommended.Effective != 128 {
			t.Errorf("%s: largest %d, recommended %v", c.name, found.Largest.Micro, found.Recommended)
		}
		if len(found.Timings) == 0 || found.Timings[0].Micro != found.Recommended.Largest() || found.Enough == 0 || found.Enough > found.Timings[0].Micro || trials < len(found.Probes) {
			t.Errorf("%s: timings %+v, %d enough, %d trials", c.name, found.Timings, found.Enough, trials)
		}
	}
}

// TestFindGivesUp checks what Find returns if nothing fits, and when it is asked
// to stop.
func TestFindGivesUp(t *testing.T) {
	plan := recovery.Plan{Effective: 64, World: 1}
	var oom *memory.OutOfMemoryError
	if _, err := Find(context.Background(), &coarse{toy: &toy{lab: newLab()}}, FindOptions{Plan: plan}); !errors.As(err, &oom) {
		t.Errorf("no step holds: %v", err)
	}
	small := newLab()
	small.device = 4*memory.GiB + memory.MiB
	var gaveUp *GaveUpError
	if _, err := Find(context.Background(), &toy{lab: small}, FindOptions{Plan: plan}); !errors.As(err, &gaveUp) || gaveUp.Decision.Verdict.Cause != memory.Model {
		t.Errorf("nothing fits: %v", err)
	}
	found, err := Find(context.Background(), &toy{lab: small}, FindOptions{Plan: plan, Policy: recovery.Policy{Recompute: true, MinMicro: 1}})
	if small.device = 4*memory.GiB + memory.GiB/4; found != nil || !errors.As(err, &gaveUp) {
		t.Errorf("nothing fits, even recomputed: %+v, %v", found, err)
	}
	if found, err = Find(context.Background(), &toy{lab: small}, FindOptions{Plan: plan, Policy: recovery.Policy{Recompute: true}}); err != nil || !found.Recompute {
		t.Errorf("recomputed it fits: %+v, %v", found, err)
	}
	asked := make(chan struct{})
	close(asked)
	if _, err := Find(context.Background(), &toy{lab: newLab()}, FindOptions{Plan: plan, Interrupt: asked}); !errors.Is(err, ErrInterrupted) {
		t.Errorf("interrupted: %v", err)
	}
}

// heavy is a trainer whose time per sample grows with the micro-batch, as it does when a
// cache is too small.
type heavy struct {
	*coarse
	clock *time.Time
}

func (h *heavy) Step(ctx context.Context, p recovery.Plan) (runs.StepReport, error) {
	*h.clock = h.clock.Add(time.Duration(p.Effective) * time.Duration(100+p.Largest()) * time.Microsecond)
	return h.coarse.Step(ctx, p)
}

// TestFindPrefersWhatIsMuchFaster checks that Find recommends a smaller size if it is much
// faster.
func TestFindPrefersWhatIsMuchFaster(t *testing.T) {
	clock := time.Unix(1e9, 0)
	found, err := Find(context.Background(), &heavy{&coarse{&toy{lab: newLab()}, 64, 64}, &clock}, FindOptions{
		Plan: recovery.Plan{Effective: 128, World: 1}, Now: func() time.Time { return clock },
	})
	if err != nil {
		t.Fatal(err)
	}
	last := found.Timings[len(found.Timings)-1]
	if got := found.Recommended; got.Largest() != last.Micro || got.Largest() != found.Enough || got.Effective != 128 || got.Accumulation() < 2 ||
		!strings.HasPrefix(found.Reason, got.String()+": ") || !strings.HasSuffix(found.Reason, "the largest micro-batch that leaves enough memory unused") {
		t.Errorf("recommended %v: %s; of %+v", got, found.Reason, found.Timings)
	}
}
