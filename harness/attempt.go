package harness

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime/debug"

	"go.uber.org/zap"

	"headroom/memory"
)

// errFinished tells that there was nothing left to do.
var errFinished = errors.New("finished already")

// Panicked is a panic inside the trainer. The stack is also in the log of the
// attempt.
type Panicked struct {
	Step  int // the step that was being made
	Value any
	Stack []byte
	Log   string // path of the attempt's log
}

func (e *Panicked) Error() string {
	return fmt.Sprintf("step %d: panic: %v; the stack is in %s", e.Step, e.Value, e.Log)
}

// attempt is one life of the job: it starts from the newest whole checkpoint
// and ends with all steps made (nil), errRelaunch, or what ended the run.
func (r *runner) attempt(ctx context.Context) (err error) {
	defer r.catch(&err)
	from, bad, err := r.f.newestWhole()
	for _, d := range bad {
		r.record(Entry{Kind: KindDamaged, Text: fmt.Sprintf("checkpoint of step %d is damaged and now called %s: %s", d.Step, d.Name, d.Why)})
	}
	if err != nil {
		return err
	}
	if from != nil && from.Step >= r.o.Steps {
		r.step, r.saved, r.result.Resumed = from.Step, from.Step, from.Step
		r.result.Plan = from.Plan
		return errFinished
	}
	r.number++
	r.openLog()
	for _, text := range r.f.takeRepairs() {
		r.log.Warn(text)
	}
	if err := r.startFrom(from); err != nil {
		return err
	}
	if r.trainer, err = r.o.Open(ctx); err != nil {
		return r.loadFailed(ctx, "build the model", err)
	}
	r.loadWaits = 0
	defer r.closeTrainer()
	err = r.work(ctx, from)
	r.lastLook()
	return r.settle(err)
}

// startFrom puts the counters and the metrics where the checkpoint stands.
func (r *runner) startFrom(c *Checkpoint) error {
	r.step, r.samples, r.saved = 0, 0, -1
	if c != nil {
		r.step, r.samples, r.saved = c.Step, c.Samples, c.Step
		if c.Plan.Effective != r.o.Plan.Effective {
			return fmt.Errorf("resume from step %d: %w", c.Step, &Mismatch{Key: "effective batch",
				Have: fmt.Sprint(r.o.Plan.Effective), Want: fmt.Sprint(c.Plan.Effective)})
		}
	}
	if r.result.Attempts == 0 {
		r.result.Resumed = r.step
		if r.f.Attempts() == 0 {
			r.record(Entry{Kind: KindRun, Text: fmt.Sprintf("a run of %d steps of %d samples starts", r.o.Steps, r.o.Plan.Effective)})
		}
	}
	r.result.Attempts++
	if !r.planned {
		r.beginHistory(c)
	}
	text := fmt.Sprintf("attempt %d starts from step %d of %d", r.number, r.step, r.o.Steps)
	if r.o.Precision != "" {
		text += ", in " + r.o.Precision
	}
	r.record(Entry{Kind: KindAttempt, Text: text})
	r.setStatus(StateRunning, "")
	if err := r.f.CutMetrics(r.step); err != nil {
		return fmt.Errorf("resume from step %d: cut metrics.jsonl: %w", r.step, err)
	}
	return nil
}

// work makes the steps that are missing.
func (r *runner) work(ctx context.Context, from *Checkpoint) error {
	if from != nil {
		if err := r.f.loadCheckpoint(from.Step, r.trainer.Load); err != nil {
			return r.loadFailed(ctx, "load checkpoint of step "+fmt.Sprint(from.Step), err)
		}
	}
	if err := r.prepare(ctx); err != nil {
		return err
	}
	for r.step < r.o.Steps {
		if err := r.wanted(ctx); err != nil {
			return err
		}
		if r.o.BeforeStep != nil && r.step > r.begun {
			r.begun = r.step
			r.o.BeforeStep(r.step)
		}
		if err := r.makeStep(ctx); err != nil {
			return err
		}
		if every := r.o.CheckpointEvery; every > 0 && r.step%every == 0 && r.step < r.o.Steps {
			if err := r.save(false); r.isLost(err) {
				return fmt.Errorf("save checkpoint of step %d: %w", r.step, err)
			} else if err != nil {
				r.saveFailed(err)
			}
		}
	}
	return nil
}

// prepare takes the first look at the trainer and settles the attempt's plan.
func (r *runner) prepare(ctx context.Context) error {
	r.seen = newEvidence(r.trainer.Memory())
	r.status.Capacity = r.seen.baseline.Capacity
	recomputer, able := r.trainer.(Recomputer)
	if r.o.Policy.Recompute && !able {
		r.o.Policy.Recompute = false
		r.log.Warn("recompute is allowed, but this model cannot compute activations again")
	}
	if able && r.history.Recomputing() {
		recomputer.SetRecompute(true)
	}
	r.history.Finished = r.step
	if plan := r.history.Plan; plan.Micro > 0 {
		r.record(Entry{Kind: KindPlan, Text: plan.String(), Plan: &plan})
		return nil
	}
	for r.history.Plan.Micro == 0 {
		if err := r.search(ctx, r.searchLimit()); err != nil {
			return err
		}
	}
	return nil
}

// loadFailed is the end of an attempt whose model does not even stand.
func (r *runner) loadFailed(ctx context.Context, what string, err error) error {
	if ctx.Err() != nil {
		return r.canceled(ctx)
	}
	var oom *memory.OutOfMemory
	if r.isLost(err) || !errors.As(err, &oom) {
		return fmt.Errorf("%s: %w", what, err)
	}
	failure := *oom
	failure.Phase = memory.PhaseLoad
	verdict := memory.Diagnose(memory.Evidence{Failure: failure, MinMicro: r.o.Policy.minMicro()})
	hint := "a smaller model, an optimizer with less state, or a device with more memory"
	if failure.Stats.Foreign > 0 {
		hint = fmt.Sprintf("other processes hold %v: stop them, or choose another device", failure.Stats.Foreign)
	}
	r.record(Entry{Kind: KindOOM, Text: fmt.Sprintf("%s: %v", what, &failure), OOM: &failure, Verdict: &verdict})
	if verdict.Cause == memory.Foreign && r.loadWaits < r.o.Policy.Waits {
		return r.waitToLoad(ctx, verdict)
	}
	return r.stop(Decision{Remedy: Stop, Plan: r.o.Plan, Verdict: &verdict, Hint: hint,
		Reason: fmt.Sprintf("out of memory before the first step: %s", verdict.Why)})
}

// waitToLoad gives other processes time to leave before the next attempt.
func (r *runner) waitToLoad(ctx context.Context, v memory.Verdict) error {
	r.loadWaits++
	r.decided(Decision{Remedy: Wait, Plan: r.o.Plan, Verdict: &v,
		Reason: fmt.Sprintf("wait for other processes to leave (%d of %d): %s", r.loadWaits, r.o.Policy.Waits, v.Why)})
	r.setStatus(StateRunning, r.status.Reason)
	if err := r.pause(ctx, waitPolls*waitPoll); err != nil {
		return err
	}
	r.result.Failures++
	return errRelaunch
}

func (r *runner) stop(d Decision) error {
	r.decided(d)
	return &GaveUp{Decision: d, Step: r.step + 1}
}

// catch turns a panic into the error of the attempt.
func (r *runner) catch(err *error) {
	value := recover()
	if value == nil {
		return
	}
	p := &Panicked{Step: r.step + 1, Value: value, Stack: debug.Stack(), Log: filepath.Join(r.f.Dir(), "logs", logName(r.number))}
	r.log.Error("panic", zap.Any("value", value), zap.ByteString("stack", p.Stack))
	*err = p
}

// closeTrainer gives the device back. A failure to is logged: it changes
// nothing about how the attempt ended.
func (r *runner) closeTrainer() {
	defer func() {
		if value := recover(); value != nil {
			r.log.Error("panic while closing the trainer", zap.Any("value", value), zap.ByteString("stack", debug.Stack()))
		}
	}()
	if err := r.trainer.Close(); err != nil {
		r.log.Warn("close the trainer", zap.Error(err))
	}
}
