package harness

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"headroom/search"
)

// Options say what to run.
type Options struct {
	Folder *Folder        // where everything is written; held (locked) by the caller
	Steps  int            // optimizer steps of the whole run
	Plan   Plan           // what was asked for; Micro 0 searches for the largest that fits
	Search search.Options // bounds of that search; Max 0 means one rank's share of a step
	Policy Policy

	// Precision is what the trainer computes in, if not float32: such as "bf16".
	// Attempts tell it. Memory depends on it, so what was learned with another one
	// is forgotten.
	Precision string

	CheckpointEvery int // steps between checkpoints; 0 saves only at the end, when interrupted and on giving up
	Keep            int // newest checkpoints kept; 0 means 1

	// Open builds the trainer of an attempt, freshly initialised. A device too
	// small for it is a *memory.OutOfMemory.
	Open func(ctx context.Context) (Trainer, error)

	// Lost, if not nil, tells whether an error of the trainer means that its
	// device is gone with everything on it. Such an error is answered with a
	// *DeviceLost.
	Lost func(error) bool
	// Watch, if not nil, begins to watch the device. It ends with ctx. A nil
	// Watch is one that sees nothing.
	Watch func(ctx context.Context) Watch

	// BeforeStep, if not nil, is called with the number of steps finished so
	// far, before each step is first tried (not before its retries).
	BeforeStep func(finished int)
	// Interrupt asks for a clean end when it is closed: the step is finished, a
	// checkpoint written and ErrInterrupted returned; a search, a wait or a step
	// that keeps running out of memory is not finished first. Cancelling the
	// context ends the run as soon as the trainer returns, without a checkpoint.
	Interrupt <-chan struct{}

	OnEntry func(Entry)                                      // every journal entry, as it is written
	OnStep  func(StepReport)                                 // every finished step
	Log     *zap.Logger                                      // nil logs nothing
	Now     func() time.Time                                 // nil is time.Now
	Sleep   func(ctx context.Context, d time.Duration) error // nil really sleeps
}

// Result is what a run came to. It is filled in as far as the run got, also
// when Run returns an error.
type Result struct {
	Steps    int // optimizer steps finished, of the whole run
	Resumed  int // the step it started from
	Attempts int // attempts of this call
	Failures int // failures of memory survived in this call
	// AllFailures counts those of memory in the whole run, by all its calls, the
	// one it ended with included: as [Status] does.
	AllFailures int
	Losses      int        // of the device, in the whole run
	Plan        Plan       // in force at the end
	Last        StepReport // the newest step of this call
	Finished    bool       // whether all steps of the run are made
}

// ErrInterrupted is returned after a clean, resumable end.
var ErrInterrupted = errors.New("interrupted; the same command goes on from here")

// GaveUp is returned when no remedy was left. Decision.Verdict tells a cause
// that is known from memory.Unknown.
type GaveUp struct {
	Decision Decision
	Step     int // that could not be made
}

func (e *GaveUp) Error() string { return e.Decision.Reason }

// Run makes the steps that are missing, from the newest whole checkpoint of the
// folder, and returns when they are done or something ended it. A run that is
// finished already returns at once, with Finished set, and opens no trainer.
//
// The errors: ErrInterrupted; an error that wraps ctx's; a *[GaveUp] on memory;
// a *[CheckpointError] where work would be lost; a *[BrokenPromise] or a
// *[Panicked] of the trainer; a *[NotFinite]; a *[Mismatch] between checkpoint
// and configuration; a *[DeviceLost], after which a new process may be called
// for; whatever else the trainer returned, with the step in front.
func Run(ctx context.Context, o Options) (Result, error) {
	if err := o.complete(); err != nil {
		return Result{Plan: o.Plan}, err
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
	r := newRunner(patient, o)
	defer r.closeLog()
	if o.Watch != nil {
		seen, end := context.WithCancel(ctx)
		defer end()
		r.watch = o.Watch(seen)
	}
	for {
		err := r.attempt(ctx)
		if r.isLost(err) {
			err = r.lost(ctx, err)
		}
		if !errors.Is(err, errRelaunch) {
			return r.end(ctx, err)
		}
	}
}

// complete fills in what was left out, or says everything that is wrong.
func (o *Options) complete() error {
	var errs []error
	if o.Folder == nil || o.Open == nil {
		errs = append(errs, errors.New("folder and open are needed"))
	}
	if o.Steps < 1 {
		errs = append(errs, fmt.Errorf("steps %d: at least 1", o.Steps))
	}
	if o.CheckpointEvery < 0 {
		errs = append(errs, fmt.Errorf("checkpoint every %d steps: 0 for never, or more", o.CheckpointEvery))
	}
	if o.Plan.Micro < 0 {
		errs = append(errs, fmt.Errorf("micro-batch %d: at least 1, or 0 to search for the largest that fits", o.Plan.Micro))
	} else {
		errs = append(errs, o.Plan.WithMicro(max(1, o.Plan.Micro)).Validate())
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("run: %w", err)
	}
	o.Keep = max(1, o.Keep)
	if o.Log == nil {
		o.Log = zap.NewNop()
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Sleep == nil {
		o.Sleep = sleep
	}
	return nil
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
