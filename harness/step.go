package harness

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"headroom/memory"
	"headroom/recovery"
	"headroom/runs"
)

// BrokenPromiseError reports that a trainer broke the contract of [Trainer]. The
// run stops, because its results could not be trusted.
type BrokenPromiseError struct {
	Step int
	What string // "samples", "step" or "position of the first sample"
	Have int64
	Want int64
}

func (e *BrokenPromiseError) Error() string {
	return fmt.Sprintf("step %d: the trainer broke its contract: it reported %s = %d instead of %d", e.Step, e.What, e.Have, e.Want)
}

// makeStep runs one step, with as many tries as [recovery.Decide] grants.
func (l *loop) makeStep(ctx context.Context) error {
	for {
		start := l.o.Now()
		report, err := l.trainer.Step(ctx, l.session.Running())
		took := l.o.Now().Sub(start)
		if err == nil {
			report.Seconds = took.Seconds()
			return l.finish(ctx, report)
		}
		if err := l.recover(ctx, err, took); err != nil {
			return err
		}
	}
}

// finish records a finished step and carries out the decision that follows from
// it.
func (l *loop) finish(ctx context.Context, r runs.StepReport) error {
	if err := l.check(r); err != nil {
		return err
	}
	d, err := l.session.Step(r)
	if err == nil {
		err = l.carryOut(ctx, d, recovery.Event{})
	}
	l.observe()
	return err
}

// check returns an error if the report shows that the trainer broke its contract,
// or if a value in it is NaN or infinite.
func (l *loop) check(s runs.StepReport) error {
	at := l.session.at()
	step := at.step + 1
	for _, p := range []struct {
		what       string
		have, want int64
	}{
		{"samples", int64(s.Samples), int64(l.o.Plan.Effective)},
		{"step", int64(s.Step), int64(step)},
		{"position of the first sample", s.First, at.samples},
	} {
		if p.have != p.want {
			return &BrokenPromiseError{Step: step, What: p.what, Have: p.have, Want: p.want}
		}
	}
	for _, p := range []struct {
		what  string
		value float64
	}{{"loss", s.Loss}, {"gradient norm", s.GradNorm}, {"learning rate", s.LR}} {
		if math.IsNaN(p.value) || math.IsInf(p.value, 0) {
			return &NotFiniteError{Step: step, What: p.what, Value: p.value}
		}
	}
	return nil
}

// recover finds out why a try failed and carries out the remedy. It returns nil if
// the step is to be tried again.
func (l *loop) recover(ctx context.Context, err error, took time.Duration) error {
	if ctx.Err() != nil {
		return l.canceled(ctx)
	}
	var oom *memory.OutOfMemoryError
	var broken *NotFiniteError
	switch {
	case errors.As(err, &broken):
		return err // its text names the step already
	case l.isGone(err), !errors.As(err, &oom):
		return l.inStep(err)
	}
	if err := l.answer(ctx, recovery.Event{OOM: &memory.Evidence{Failure: *oom}}, took); err != nil {
		return err
	}
	return l.wanted(ctx)
}

// answer lets the session handle an event and carries out the decision.
func (l *loop) answer(ctx context.Context, e recovery.Event, took time.Duration) error {
	d, err := l.session.Handle(e, took)
	if err != nil {
		return err
	}
	return l.carryOut(ctx, d, e)
}

// inStep returns err with the number of the current step at the start of its text,
// unless the text already begins with it.
func (l *loop) inStep(err error) error {
	step := fmt.Sprintf("step %d: ", l.step()+1)
	if strings.HasPrefix(err.Error(), step) {
		return err
	}
	return fmt.Errorf("%s%w", step, err)
}
