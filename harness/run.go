package harness

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime/debug"
	"time"

	"go.uber.org/zap"

	"headroom/memory"
	"headroom/recovery"
	"headroom/runs"
)

// RunOptions say how the native loop runs steps.
type RunOptions struct {
	CheckpointEvery int // steps between checkpoints; 0 saves only at the end, on an interrupt, before a relaunch and on giving up
	Keep            int // number of newest checkpoints to keep; 0 means 1

	// Open builds the trainer of an attempt, freshly initialised. If the device
	// is too small for it, the error is a *memory.OutOfMemoryError.
	Open func(ctx context.Context) (Trainer, error)

	// Gone, if not nil, reports whether an error of the trainer means that its
	// device is gone with everything on it. Run then returns a *DeviceGoneError.
	Gone func(error) bool
	// Observe, if not nil, starts to observe the device until ctx ends. It may return nil
	// if the device cannot be observed.
	Observe func(ctx context.Context) Observer

	// BeforeStep, if not nil, is called before the first try of each step, but not before
	// its retries. finished is the number of steps finished so far.
	BeforeStep func(finished int)
	// Interrupt, when closed, asks for a clean stop: Run finishes the step, writes a
	// checkpoint and returns ErrInterrupted. It does not finish a search, a wait or a
	// step that keeps running out of memory. Cancelling the context instead ends the run
	// as soon as the trainer returns, without a checkpoint.
	Interrupt <-chan struct{}

	Sleep func(ctx context.Context, d time.Duration) error // nil means [Sleep]
}

// complete fills in the defaults, or returns an error that names everything wrong with
// the options.
func (o *RunOptions) complete() error {
	var errs []error
	if o.Open == nil {
		errs = append(errs, errors.New("open is needed"))
	}
	if o.CheckpointEvery < 0 {
		errs = append(errs, fmt.Errorf("checkpoint every %d steps: must be positive, or 0 for never", o.CheckpointEvery))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("run: %w", err)
	}
	o.Keep = max(1, o.Keep)
	if o.Sleep == nil {
		o.Sleep = Sleep
	}
	return nil
}

// Sleep waits for d, or until ctx ends; in that case it returns ctx's error.
func Sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// PanicError reports a panic inside the trainer. The log of the attempt also contains the
// stack trace.
type PanicError struct {
	Step  int // the step that was running
	Value any
	Stack []byte
	Log   string // path of the attempt's log
}

func (e *PanicError) Error() string {
	return fmt.Sprintf("step %d: panic: %v; the stack is in %s", e.Step, e.Value, e.Log)
}

// errRelaunch ends an attempt that is followed by another.
var errRelaunch = errors.New("relaunch")

// loop is one call to Run. It runs the steps, and the session keeps the records.
type loop struct {
	session *Session
	f       *runs.Folder
	o       SessionOptions
	do      RunOptions
	patient context.Context // ends with the run's context or at an interrupt, whichever comes first

	trainer  Trainer
	observer Observer  // nil if the device cannot be observed
	read     time.Time // when the device was last read
	begun    int       // steps finished when BeforeStep was last called; -1 if never
}

// Run runs the remaining steps, starting from the newest whole checkpoint in the
// session's folder. It ends the session when all steps are done or something has stopped
// the run. If the run is already finished, Run returns at once, with Finished set.
//
// The error is one of these, possibly wrapped:
//
//   - ErrInterrupted or the error of ctx;
//   - a *[GaveUpError] if no remedy for a lack of memory is left;
//   - a *[CheckpointError] if work would be lost;
//   - a *[BrokenPromiseError] or a *[PanicError] of the trainer;
//   - a *[NotFiniteError];
//   - a *[MismatchError] between checkpoint and configuration;
//   - a *[runs.LockedError] if another process has taken the folder;
//   - a *[DeviceGoneError], after which a new process may be needed;
//   - any other error of the trainer; for an error in a step, its text names the step.
func Run(ctx context.Context, s *Session, o RunOptions) (Result, error) {
	if err := o.complete(); err != nil {
		return Result{Plan: s.o.Plan}, err
	}
	if s.o.Steps < 1 {
		return Result{Plan: s.o.Plan}, fmt.Errorf("run: steps %d: must be at least 1", s.o.Steps)
	}
	patient, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		select {
		case <-o.Interrupt:
			stop()
		case <-patient.Done():
		}
	}()
	l := &loop{session: s, f: s.f, o: s.o, do: o, patient: patient, read: s.started, begun: -1}
	if o.Observe != nil {
		seen, end := context.WithCancel(ctx)
		defer end()
		l.observer = o.Observe(seen)
	}
	for {
		err := l.try(ctx)
		if l.isGone(err) {
			err = l.gone(ctx, err)
		}
		if !errors.Is(err, errRelaunch) {
			return s.End(err)
		}
	}
}

// step returns the number of optimizer steps finished.
func (l *loop) step() int { return l.session.at().step }

// try runs one attempt, from the newest whole checkpoint on. It returns nil once all
// steps are completed, errRelaunch if another attempt should follow, errFinished if the
// run had already finished, or the error that ended the run.
func (l *loop) try(ctx context.Context) (err error) {
	defer l.catch(&err)
	from, bad, err := l.f.NewestCheckpoint()
	for _, d := range bad {
		l.session.Note(runs.Entry{Kind: runs.KindDamaged, Text: fmt.Sprintf("checkpoint of step %d is damaged and was renamed to %s: %s", d.Step, d.Name, d.Why)})
	}
	if err != nil {
		return err
	}
	if from != nil && from.Step >= l.o.Steps && l.f.OfThisConfig(from) {
		l.session.already(from)
		return errFinished
	}
	if err := l.session.Attempt(from); err != nil {
		return err
	}
	if l.trainer, err = l.do.Open(ctx); err != nil {
		return l.loadFailed(ctx, "build the model", err)
	}
	defer l.closeTrainer()
	err = l.work(ctx, from)
	l.lastLook()
	return l.saveAtEnd(err)
}

// work runs the remaining steps.
func (l *loop) work(ctx context.Context, from *runs.Checkpoint) error {
	if from != nil {
		if err := l.f.LoadCheckpoint(from.Step, l.trainer.Load); err != nil {
			return l.loadFailed(ctx, "load checkpoint of step "+fmt.Sprint(from.Step), err)
		}
	}
	if err := l.prepare(ctx); err != nil {
		return err
	}
	for l.step() < l.o.Steps {
		if err := l.wanted(ctx); err != nil {
			return err
		}
		if l.do.BeforeStep != nil && l.step() > l.begun {
			l.begun = l.step()
			l.do.BeforeStep(l.begun)
		}
		if err := l.makeStep(ctx); err != nil {
			return err
		}
		if every := l.do.CheckpointEvery; every > 0 && l.step()%every == 0 && l.step() < l.o.Steps {
			if err := l.saveMeanwhile(); err != nil {
				return err
			}
		}
	}
	return nil
}

// prepare records the trainer's memory and abilities, and chooses the first plan of the
// attempt.
func (l *loop) prepare(ctx context.Context) error {
	recomputer, able := l.trainer.(Recomputer)
	if l.o.Policy.Recompute && !able {
		l.session.logger().Warn("recompute is allowed, but this model cannot recompute activations")
	}
	if able && l.session.Recomputing() {
		recomputer.SetRecompute(true)
	}
	l.session.Look(l.trainer.Stats(), recovery.Able{EmptyCache: true, CutStep: true, Probe: true, Recompute: able, CountSteps: true})
	for l.session.Running().Micro == 0 {
		if err := l.search(ctx, l.o.Plan.Share(0)); err != nil {
			return err
		}
	}
	return nil
}

// loadFailed handles err, which occurred while the model was being built or loaded, and
// returns the error with which the attempt ends. The argument what says which of the two
// was under way; if loadFailed passes err on, it puts what at the start of the text.
func (l *loop) loadFailed(ctx context.Context, what string, err error) error {
	if ctx.Err() != nil {
		return l.canceled(ctx)
	}
	var oom *memory.OutOfMemoryError
	if l.isGone(err) || !errors.As(err, &oom) {
		return fmt.Errorf("%s: %w", what, err)
	}
	return l.answer(ctx, recovery.Event{Load: &memory.Evidence{Failure: *oom}}, 0)
}

// wanted returns the reason why the run should stop now, or nil if it should go on. The
// reason is either that the context is done or that an interrupt was requested.
func (l *loop) wanted(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return l.canceled(ctx)
	}
	select {
	case <-l.do.Interrupt:
		return ErrInterrupted
	default:
		return nil
	}
}

func (l *loop) canceled(ctx context.Context) error {
	return fmt.Errorf("stopped after step %d: %w", l.step(), ctx.Err())
}

// saveMeanwhile saves between two steps. If the device is gone or another process has
// taken the folder, it returns the error. Any other failure is merely reported, because
// no work is lost yet.
func (l *loop) saveMeanwhile() error {
	err := l.session.Save(l.trainer.Save, l.do.Keep, false)
	locked := (*runs.LockedError)(nil)
	switch {
	case err == nil:
	case l.isGone(err), errors.As(err, &locked):
		return fmt.Errorf("save checkpoint of step %d: %w", l.step(), err)
	default:
		l.session.saveFailed(err)
	}
	return nil
}

// saveAtEnd saves the work of an attempt that ended with err, if that work must
// not be lost.
func (l *loop) saveAtEnd(err error) error {
	var gaveUp *GaveUpError
	switch {
	case err == nil, errors.Is(err, ErrInterrupted), errors.Is(err, errRelaunch):
		if failed := l.session.Save(l.trainer.Save, l.do.Keep, true); failed != nil {
			if !l.isGone(failed) { // a lost device is reported elsewhere
				l.session.saveFailed(failed)
			}
			return &CheckpointError{Dir: l.f.Dir(), Step: l.step(), Newest: l.session.at().saved, Err: failed}
		}
	case errors.As(err, &gaveUp):
		// The step was undone, so the state is good: another device or another
		// configuration can continue from it.
		if failed := l.session.Save(l.trainer.Save, l.do.Keep, true); failed != nil {
			l.session.saveFailed(failed)
		}
	}
	return err
}

// CheckpointError reports that a checkpoint could not be written although work would be
// lost without it.
type CheckpointError struct {
	Dir    string // the run's folder
	Step   int    // number of steps in the state that was to be saved
	Newest int    // step of the newest whole checkpoint; -1 if there is none
	Err    error
}

func (e *CheckpointError) Error() string {
	from := "from the beginning"
	if e.Newest >= 0 {
		from = fmt.Sprintf("from step %d", e.Newest)
	}
	return fmt.Sprintf("save checkpoint of step %d: %v; make room or fix the disk under %s, then run the same command: it continues %s",
		e.Step, e.Err, e.Dir, from)
}

func (e *CheckpointError) Unwrap() error { return e.Err }

// catch turns a panic into the error of the attempt.
func (l *loop) catch(err *error) {
	value := recover()
	if value == nil {
		return
	}
	p := &PanicError{Step: l.step() + 1, Value: value, Stack: debug.Stack(), Log: filepath.Join(l.f.Dir(), "logs", runs.LogName(l.session.Number()))}
	l.session.logger().Error("panic", zap.Any("value", value), zap.ByteString("stack", p.Stack))
	*err = p
}

// closeTrainer frees the device. A failure to do so is only logged, because it does not
// change how the attempt ended.
func (l *loop) closeTrainer() {
	defer func() {
		if value := recover(); value != nil {
			l.session.logger().Error("panic while closing the trainer", zap.Any("value", value), zap.ByteString("stack", debug.Stack()))
		}
	}()
	if err := l.trainer.Close(); err != nil {
		l.session.logger().Warn("close the trainer", zap.Error(err))
	}
}
