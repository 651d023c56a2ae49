package harness

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"

	"headroom/memory"
)

// BrokenPromise is a trainer that did something else than a [Trainer] must. The
// run stops: its results could not be trusted.
type BrokenPromise struct {
	Step int
	What string // "samples", "step" or "position of the first sample"
	Have int64
	Want int64
}

func (e *BrokenPromise) Error() string {
	return fmt.Sprintf("step %d: the trainer broke its promise: it reported %s %d, it must be %d", e.Step, e.What, e.Have, e.Want)
}

// makeStep makes one step, with as many tries as Decide grants.
func (r *runner) makeStep(ctx context.Context) error {
	for {
		plan := r.history.Running()
		start := r.o.Now()
		report, err := r.trainer.Step(ctx, plan)
		now := r.o.Now()
		seconds := now.Sub(start).Seconds()
		if err == nil {
			report.Seconds = seconds
			if err := r.finish(ctx, plan, report); err != nil {
				return err
			}
			r.tick(now)
			r.observe(now)
			return nil
		}
		if err := r.recover(ctx, plan, err, seconds); err != nil {
			return err
		}
	}
}

// finish takes a finished step into the account.
func (r *runner) finish(ctx context.Context, plan Plan, s StepReport) error {
	if err := r.check(s); err != nil {
		return err
	}
	if err := r.f.AddStep(s); err != nil {
		return fmt.Errorf("step %d: metrics: %w", s.Step, err)
	}
	r.step++
	r.samples += int64(s.Samples)
	r.result.Last = s
	r.interval.samples += s.Samples
	r.interval.seconds += s.Seconds
	r.seen.add(plan, s.Memory)
	if r.o.OnStep != nil {
		r.o.OnStep(s)
	}
	return r.answer(ctx, Event{Step: &s})
}

// check holds the trainer to its contract.
func (r *runner) check(s StepReport) error {
	step := r.step + 1
	for _, p := range []struct {
		what       string
		have, want int64
	}{
		{"samples", int64(s.Samples), int64(r.o.Plan.Effective)},
		{"step", int64(s.Step), int64(step)},
		{"position of the first sample", s.First, r.samples},
	} {
		if p.have != p.want {
			return &BrokenPromise{Step: step, What: p.what, Have: p.have, Want: p.want}
		}
	}
	for _, p := range []struct {
		what  string
		value float64
	}{{"loss", s.Loss}, {"gradient norm", s.GradNorm}, {"learning rate", s.LR}} {
		if math.IsNaN(p.value) || math.IsInf(p.value, 0) {
			return &NotFinite{Step: step, What: p.what, Value: p.value}
		}
	}
	return nil
}

// recover finds out why a try failed and has the remedy carried out. It
// returns nil if the step is to be tried again.
func (r *runner) recover(ctx context.Context, plan Plan, err error, seconds float64) error {
	if ctx.Err() != nil {
		return r.canceled(ctx)
	}
	var oom *memory.OutOfMemory
	var broken *NotFinite
	switch {
	case errors.As(err, &broken):
		return err // names its step itself
	case r.isLost(err), !errors.As(err, &oom):
		return r.inStep(err)
	}
	evidence := r.seen.of(*oom, plan, r.o.Policy.minMicro())
	verdict := memory.Diagnose(evidence)
	r.status.Verdict = &verdict
	r.record(Entry{Kind: KindOOM, Text: fmt.Sprintf("step %d: %v", r.step+1, oom),
		Plan: &plan, OOM: oom, Verdict: &verdict, Seconds: seconds})
	err = r.answer(ctx, Event{OOM: &evidence})
	if err == nil || errors.Is(err, errRelaunch) {
		r.result.Failures++
	}
	if err != nil {
		return err
	}
	return r.wanted(ctx)
}

// inStep is err with the step in front, where it does not name that itself.
func (r *runner) inStep(err error) error {
	step := fmt.Sprintf("step %d: ", r.step+1)
	if strings.HasPrefix(err.Error(), step) {
		return err
	}
	return fmt.Errorf("%s%w", step, err)
}
