package harness

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"headroom/memory"
	"headroom/recovery"
	"headroom/runs"
	"headroom/search"
)

// FindOptions are the options of [Find].
type FindOptions struct {
	Plan      recovery.Plan // Micro is ignored
	Policy    recovery.Policy
	Interrupt <-chan struct{}  // as in [RunOptions]
	Now       func() time.Time // nil means time.Now

	OnEntry  func(runs.Entry) // called with trials and decisions as they happen; Find itself writes nothing
	OnTiming func(Timing)     // called with every size that was timed
}

// Found is what [Find] returns.
type Found struct {
	Available   memory.Bytes   `json:"available"`
	Largest     Timing         `json:"largest"` // the largest micro-batch that fits, measured in whole steps after the search
	Line        search.Line    `json:"line"`    // peak memory by micro-batch
	Probes      []search.Probe `json:"probes"`
	Timings     []Timing       `json:"timings"` // of whole steps, largest micro-batch first
	Enough      int            `json:"enough"`  // smallest of the timed micro-batches whose speed is within 1 % of the best
	Recommended recovery.Plan  `json:"recommended"`
	Reason      string         `json:"reason"`
	Recompute   bool           `json:"recompute,omitempty"` // activations are recomputed
}

// Timing is the result of running a few whole optimizer steps with one plan.
type Timing struct {
	Micro        int          `json:"micro"`
	Accumulation int          `json:"accumulation"`
	Steps        int          `json:"steps"`
	Peak         memory.Bytes `json:"peak"`
	PerSecond    float64      `json:"samples_per_second"`
}

// finder tries sizes on a trainer that is discarded afterwards.
type finder struct {
	o     FindOptions
	t     Trainer
	found Found
}

// Find searches for the largest micro-batch that fits. It then runs whole optimizer steps
// with that size and with the plan to recommend, and times that plan and smaller ones.
// Memory is more fragmented in a whole step, so a size that fitted in the search may run
// out of memory there; the search then continues below that size. The trainer still
// belongs to the caller, but can no longer be used for training.
//
// The error is ErrInterrupted, the error of ctx, a *[GaveUpError] if nothing fits, or any
// other error of the trainer.
func Find(ctx context.Context, t Trainer, o FindOptions) (*Found, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	recomputer, able := t.(Recomputer)
	o.Policy.Able = recovery.Able{EmptyCache: true, Probe: true, Recompute: able, CountSteps: true}
	o.Plan.Micro = 0
	f := &finder{o: o, t: t}
	f.found.Available = t.Stats().Available()
	history := recovery.NewHistory(o.Plan)
	for limit := o.Plan.Share(0); ; {
		s, err := seek(ctx, t, o.Policy, limit, func() error { return f.wanted(ctx) }, nil, func(p search.Probe, oom *memory.OutOfMemoryError) {
			f.note(runs.Entry{Kind: runs.KindProbe, Text: probeText(p, oom), Probe: &p, OOM: oom})
		})
		if wanted := f.wanted(ctx); wanted != nil {
			return nil, wanted
		}
		if err != nil {
			return nil, err
		}
		e := recovery.Event{Search: &s}
		d := recovery.Decide(o.Policy, history, e)
		history = history.Apply(e, d)
		switch d.Remedy {
		case recovery.Continue:
		case recovery.Recompute:
			f.note(runs.Entry{Kind: runs.KindDecision, Text: d.Reason, Decision: &d})
			recomputer.SetRecompute(true)
			f.found.Recompute = true
			continue
		default:
			return nil, &GaveUpError{Decision: d, Step: 1}
		}
		f.found.Probes = append(f.found.Probes, s.Result.Probes...)
		f.found.Line, f.found.Recommended, f.found.Reason = s.Result.Line, d.Plan, d.Reason
		failed, err := f.hold(ctx, s.Result.Fits)
		if err != nil {
			return nil, err
		}
		if failed == 0 {
			return &f.found, nil
		}
		limit = failed - 1
	}
}

// hold runs whole steps to try what the search found: first with the largest size that
// fits, then with the plan to recommend. It times that plan and smaller ones. failed is a
// size that fitted in the search but ran out of memory in a whole step, or 0 if there is
// none. If that size is the smallest allowed, nothing is left below it, and hold returns
// the failure as err.
func (f *finder) hold(ctx context.Context, fits int) (failed int, err error) {
	whole := recovery.Plan{Effective: fits, World: 1, Micro: fits}
	f.found.Largest, err = f.time(ctx, whole, 1)
	if failed, err = f.below(fits, err); failed > 0 || err != nil {
		return failed, err
	}
	f.found.Timings, err = f.curve(ctx, f.found.Recommended)
	if failed, err = f.below(f.found.Recommended.Largest(), err); failed > 0 || err != nil {
		return failed, err
	}
	speeds := make([]search.Speed, len(f.found.Timings))
	for i, t := range f.found.Timings {
		speeds[i] = search.Speed{N: t.Micro, PerSecond: t.PerSecond}
	}
	f.found.Enough, _ = search.Enough(speeds)
	largest := f.found.Recommended
	if n := search.Better(speeds, largest.Largest()); n > 0 {
		better := largest.WithMicro(n)
		f.found.Recommended = better
		f.found.Reason = fmt.Sprintf("%v: %.0f samples per second, against %.0f with %v, which has the largest micro-batch that leaves enough memory unused",
			better, search.PerSecond(speeds, n), search.PerSecond(speeds, largest.Largest()), largest)
	}
	return 0, nil
}

// below handles err, the error of a whole step of the given size. If the step ran out of
// memory and a smaller size is allowed, below returns size, so that the search continues
// below it. Otherwise it returns 0 and err.
func (f *finder) below(size int, err error) (int, error) {
	var oom *memory.OutOfMemoryError
	if !errors.As(err, &oom) || size <= f.o.Policy.Least() {
		return 0, err
	}
	f.note(runs.Entry{Kind: runs.KindOOM, OOM: oom,
		Text: fmt.Sprintf("micro-batch %d fitted alone but not in a whole step, so the search continues below it: %v", size, oom)})
	return size, nil
}

// curve times whole steps of plan and of up to three smaller micro-batches.
func (f *finder) curve(ctx context.Context, plan recovery.Plan) ([]Timing, error) {
	const sizes, steps = 4, 3
	var all []Timing
	var seen []int
	for micro := plan.Micro; micro >= f.o.Policy.Least() && len(all) < sizes; micro /= 2 {
		p := plan.WithMicro(micro)
		if slices.Contains(seen, p.Largest()) {
			continue
		}
		seen = append(seen, p.Largest())
		t, err := f.time(ctx, p, steps)
		if err != nil {
			return nil, err
		}
		if f.o.OnTiming != nil {
			f.o.OnTiming(t)
		}
		all = append(all, t)
	}
	return all, nil
}

// time runs n whole steps with p and measures them. It stops early once the steps have
// run long enough for a measurement. If n is more than 1, the first step is a warm-up
// that is left out of the speed, unless that step alone has run long enough.
func (f *finder) time(ctx context.Context, p recovery.Plan, n int) (Timing, error) {
	const enough = 5 * time.Second
	t := Timing{Micro: p.Largest(), Accumulation: p.Accumulation()}
	// A run does the same before a new plan: segments cut to other sizes would be in the
	// way.
	if _, err := f.t.EmptyCache(); err != nil {
		return t, fmt.Errorf("find: empty the cache: %w", err)
	}
	begin, samples := f.o.Now(), 0
	for begun := begin; t.Steps < n && f.o.Now().Sub(begun) < enough; {
		if err := f.wanted(ctx); err != nil {
			return t, err
		}
		s, err := f.t.Step(ctx, p)
		if err != nil {
			return t, fmt.Errorf("find: a step with %v: %w", p, err)
		}
		t.Steps++
		t.Peak = max(t.Peak, s.Memory.Peak)
		samples += s.Samples
		if t.Steps == 1 && n > 1 && f.o.Now().Sub(begun) < enough {
			begin, samples = f.o.Now(), 0
		}
	}
	if seconds := f.o.Now().Sub(begin).Seconds(); seconds > 0 {
		t.PerSecond = float64(samples) / seconds
	}
	return t, nil
}

func (f *finder) note(e runs.Entry) {
	if f.o.OnEntry != nil {
		f.o.OnEntry(e)
	}
}

// wanted returns the error with which Find should end if the user no longer wants an
// answer, or nil.
func (f *finder) wanted(ctx context.Context) error {
	select {
	case <-f.o.Interrupt:
		return ErrInterrupted
	default:
		return ctx.Err()
	}
}
