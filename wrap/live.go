package wrap

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"headroom/machine"
	"headroom/nvml"
	"headroom/recovery"
)

// Wrapped is a command with what is known of it, ready to be lived: its methods are
// what [RunOptions] asks for.
type Wrapped struct {
	Command Command
	Match   *Match        // nil: nothing is known of it, and it is never changed
	Asked   recovery.Plan // of Match
	Trust   bool          // the user vouches for what a rewritten command would have to prove
	Run     string        // name of the run, which the command finds in HEADROOM_RUN
	Begun   time.Time     // of the run: older checkpoints are another training's

	Log     func(attempt int) (io.WriteCloser, error) // the attempt's output; nil keeps none
	Number  func() int                                // of the attempt
	Trouble func(error)                               // what went wrong beside the command
	Said    func(Rewritten)                           // what is changed before a start; may be nil
}

// UnprovenError is a change that keeps the training the same only if something holds
// that headroom does not know.
type UnprovenError struct{ Prove []string }

func (e *UnprovenError) Error() string {
	text := "a smaller micro-batch needs to know that "
	for i, p := range e.Prove {
		if i > 0 {
			text += ", and that "
		}
		text += p
	}
	return text + "; say --trust if so"
}

// Newest is the newest complete checkpoint of this run, nil if there is none.
func (w *Wrapped) Newest() (*Saved, error) {
	if w.Match == nil {
		return nil, nil
	}
	found, err := w.Match.Checkpoints(time.Now(), w.Begun)
	if err == nil && len(found.All) > 0 && time.Since(found.All[0].Time) < settled {
		time.Sleep(settled) // its writer is dead: what was written last is as whole as it gets
		found, err = w.Match.Checkpoints(time.Now(), w.Begun)
	}
	unknown := (*ResumeError)(nil)
	if errors.As(err, &unknown) {
		return nil, nil // its profile knows of none
	}
	if err != nil || found.Newest == nil {
		return nil, err
	}
	return &Saved{Path: found.Newest.Path, Step: int(found.Newest.Number), checkpoint: found.Newest}, nil
}

// Resumes tells whether the command can be made to go on.
func (w *Wrapped) Resumes() bool { return w.Match != nil && w.Match.Profile.Resume.Mode != "none" }

// Prepare is the command to start with a plan, from a checkpoint, nil for the
// beginning. As long as nothing has to change it is the user's own.
func (w *Wrapped) Prepare(plan recovery.Plan, from *Saved) (Rewritten, error) {
	if w.Match == nil || plan == w.Asked && from == nil {
		return Rewritten{Command: w.Command, Plan: plan}, nil
	}
	resume := Resume{}
	if from != nil {
		resume.Checkpoint, resume.Micro = from.checkpoint, from.Micro
	}
	next, err := w.Match.Rewrite(plan, resume)
	if err != nil {
		return next, err
	}
	if len(next.Prove) > 0 && !w.Trust {
		return next, &UnprovenError{next.Prove}
	}
	return next, nil
}

// Live is one life: the command is prepared, started and watched, and why it ended is
// said. The end of ctx ends no child: it says that the user asked for an end, which
// the child has heard, and that nothing is to be started again.
func (w *Wrapped) Live(ctx context.Context, plan recovery.Plan, from *Saved) (Outcome, Exit, error) {
	next, err := w.Prepare(plan, from)
	if err == nil {
		err = next.Write()
	}
	if err != nil {
		return Outcome{}, Exit{}, err
	}
	if w.Said != nil && len(next.Changes) > 0 {
		w.Said(next)
	}
	var log io.WriteCloser
	if w.Log != nil {
		if log, err = w.Log(w.Number()); err != nil {
			w.Trouble(fmt.Errorf("the attempt has no log: %w", err))
			log = nil
		}
	}
	exit, err := w.start(ctx, w.named(next.Command, plan), log)
	if log != nil {
		if closed := log.Close(); closed != nil {
			w.Trouble(closed)
		}
	}
	if err != nil {
		return Outcome{}, exit, err
	}
	return Classify(exit).InHostMemory(exit.GPUs, machine.LookAtMemory().Most()), exit, nil
}

// named is c with the variables by which a command can tell where it runs.
func (w *Wrapped) named(c Command, plan recovery.Plan) Command {
	c.Env = append(c.Env[:len(c.Env):len(c.Env)], "HEADROOM_RUN="+w.Run, "HEADROOM_ATTEMPT="+strconv.Itoa(w.Number()))
	if w.Match != nil {
		c.Env = append(c.Env, "HEADROOM_MICRO="+strconv.Itoa(plan.Largest()))
	}
	return c
}

func (w *Wrapped) start(ctx context.Context, c Command, log io.Writer) (Exit, error) {
	child, err := Start(c, ChildOptions{Log: log, Trouble: w.Trouble})
	if err != nil {
		return Exit{}, err
	}
	trace := &gpuTrace{c: c, list: nvml.GPUs, mine: child.Owns}
	watching, end := context.WithCancel(context.WithoutCancel(ctx))
	seen := trace.watch(watching)
	exit := child.Wait() // who asked us to stop has asked the child: signals are passed on
	end()
	exit.GPUs, exit.Stopped = <-seen, exit.Stopped || ctx.Err() != nil
	return exit, nil
}
