package wrap

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"headroom/harness"
	"headroom/machine"
	"headroom/memory"
	"headroom/nvml"
	"headroom/recovery"
)

// Wrapped is a command with what is known about it, ready to run: its methods are
// what [RunOptions] asks for.
type Wrapped struct {
	Command Command
	Match   *Match        // nil: nothing is known about the command, and it is never changed
	Asked   recovery.Plan // the plan that the command asks for, according to Match
	Trust   bool          // the user vouches for what a rewritten command would have to prove
	Run     string        // name of the run, which the command finds in HEADROOM_RUN
	Begun   time.Time     // when the run began: older checkpoints belong to another training run

	Free    memory.Bytes  // memory that each of its GPUs must have free before a life begins; 0 does not check
	Hang    time.Duration // how long without a sign of life before it is reported as possibly hanging; 0 never checks
	Restart bool          // a command that hangs is ended, and started again from its newest checkpoint

	// RunsOut is called now and then, and says when memory will run out according to a
	// worker inside the command; nil if there is no worker. With Leave, a command whose
	// memory would run out before its next checkpoint is ended just after one, and started
	// again from that.
	RunsOut func() RunsOut
	Leave   bool

	Standby *Standby                                  // for the first life; may be nil
	Log     func(attempt int) (io.WriteCloser, error) // opens the log of an attempt's output; nil keeps none
	Number  func() int                                // number of the current attempt
	Trouble func(error)                               // receives what went wrong around the command, or may be going wrong with it
	Said    func(Rewritten)                           // receives what is changed before a start; may be nil
	Started func()                                    // called after each start, when it can no longer delay anything; may be nil

	// Inside prepares to watch a life from inside its processes, and returns the command
	// to start for that. ended is called when no process of the life is left, with why it
	// ended as far as that was seen from outside, or with the zero Outcome if it was not
	// started. Inside may be nil.
	Inside func(Command) (_ Command, ended func(Outcome) Outcome)

	child   atomic.Pointer[Child]      // of the newest life
	list    func() ([]nvml.GPU, error) // nvml.GPUs, if nil
	aside   []Rename                   // incomplete checkpoints that the next life would trip over
	decides bool                       // the newest life ended in such a way that another may resume from a checkpoint
}

// UnprovenError is a change that keeps the training the same only under conditions
// that headroom cannot verify.
type UnprovenError struct{ Prove []string }

func (e *UnprovenError) Error() string {
	text := "a smaller micro-batch requires that "
	for i, p := range e.Prove {
		if i > 0 {
			text += ", and that "
		}
		text += p
	}
	return text + "; pass --trust if so"
}

// Newest is the newest complete checkpoint of this run, nil if there is none.
func (w *Wrapped) Newest() (*Saved, error) {
	if w.Match == nil {
		return nil, nil
	}
	now := time.Now()
	if !w.decides { // the result is only reported, which is not worth waiting for
		now = now.Add(settled)
	}
	found, err := w.Match.Checkpoints(now, w.Begun)
	if err == nil && w.decides && len(found.All) > 0 && time.Since(found.All[0].Time) < settled {
		time.Sleep(settled) // its writer is dead: what was written last will not get any more complete
		found, err = w.Match.Checkpoints(time.Now(), w.Begun)
	}
	if errors.As(err, new(*ResumeError)) || errors.As(err, new(*KnobError)) {
		return nil, nil // nothing says where checkpoints are: that must not keep the command from being run
	}
	w.aside = found.Aside()
	if err != nil || found.Newest == nil {
		return nil, err
	}
	return &Saved{Path: found.Newest.Path, Step: int(found.Newest.Number), Time: found.Newest.Time, checkpoint: found.Newest}, nil
}

// Resumes reports whether the command can be made to resume from a checkpoint.
func (w *Wrapped) Resumes() bool { return w.Match != nil && w.Match.Profile.Resume.Mode != "none" }

// Prepare returns the command to start with a plan, from a checkpoint or, if from is
// nil, from the beginning. As long as nothing has to change, it is the user's own.
func (w *Wrapped) Prepare(plan recovery.Plan, from *Saved, fallbacks ...string) (Rewritten, error) {
	if w.Match == nil || plan == w.Asked && from == nil && len(fallbacks) == 0 {
		return Rewritten{Command: w.Command, Plan: plan}, nil
	}
	resume := Resume{}
	if from != nil {
		resume.Checkpoint, resume.Micro, resume.Versions = from.checkpoint, from.Micro, w.Match.versions()
	}
	next, err := w.Match.Rewrite(plan, resume, fallbacks...)
	if err != nil {
		return next, err
	}
	if len(next.Prove) > 0 && !w.Trust {
		return next, &UnprovenError{next.Prove}
	}
	return next, nil
}

// Live runs one life: the command is prepared, started and watched, and the Outcome says
// why it ended. Cancelling ctx kills no child: it means that the user asked to stop,
// which the child knows already, and that nothing may be started again.
func (w *Wrapped) Live(ctx context.Context, b Beginning) (Outcome, Exit, error) {
	next, err := w.Prepare(b.Plan, b.From, b.Fallbacks...)
	if err == nil {
		err = w.gate(ctx)
	}
	if err == nil {
		err = SetAside(w.Command.Dir, w.aside)
	}
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
	c, ended := w.named(next.Command, b.Plan), func(o Outcome) Outcome { return o }
	if w.Inside != nil {
		c, ended = w.Inside(c)
	}
	exit, own, err := w.start(ctx, c, log)
	if log != nil {
		if closed := log.Close(); closed != nil {
			w.Trouble(closed)
		}
	}
	if err != nil {
		return ended(Outcome{}), exit, err
	}
	if own != nil {
		w.decides = true
		return ended(*own), exit, nil
	}
	outcome := Classify(exit)
	if outcome.Kind == OutOfHostMemory {
		outcome = outcome.InHostMemory(exit.GPUs, machine.LookAtMemory().Most())
	}
	outcome = ended(outcome)
	w.decides = outcome.Kind.Memory() || outcome.Kind == DeviceGone
	return outcome, exit, nil
}

// named is c with the variables that tell a command which run and attempt it belongs to.
func (w *Wrapped) named(c Command, plan recovery.Plan) Command {
	c.Env = append(c.Env[:len(c.Env):len(c.Env)], "HEADROOM_RUN="+w.Run, "HEADROOM_ATTEMPT="+strconv.Itoa(w.Number()))
	if w.Match != nil {
		c.Env = append(c.Env, "HEADROOM_MICRO="+strconv.Itoa(plan.Largest()))
	}
	return c
}

// BreakLine is [Child.BreakLine] of the newest life; false before the first.
func (w *Wrapped) BreakLine() bool {
	child := w.child.Load()
	return child != nil && child.BreakLine()
}

// gate waits until every GPU of the command has at least w.Free of memory free.
func (w *Wrapped) gate(ctx context.Context) error {
	trace, said := &gpuTrace{c: w.Command, list: w.gpus()}, false
	for w.Free > 0 {
		short := trace.short(w.Free)
		if len(short) == 0 {
			break
		}
		if !said {
			w.Trouble(fmt.Errorf("waiting until %v is free: %s", w.Free, strings.Join(short, "; ")))
			said = true
		}
		if err := harness.Sleep(ctx, gateEvery); err != nil {
			return fmt.Errorf("stopped while waiting for free memory: %w: %w", harness.ErrInterrupted, err)
		}
	}
	return nil
}

func (w *Wrapped) gpus() func() ([]nvml.GPU, error) {
	if w.list != nil {
		return w.list
	}
	return nvml.GPUs
}

// gateEvery is how often the gate checks the GPUs.
const gateEvery = 5 * time.Second

// start runs and watches one life of c. After a failure it waits until the GPUs have
// that life's memory back. own is the outcome if headroom ended the life, nil otherwise.
func (w *Wrapped) start(ctx context.Context, c Command, log io.Writer) (exit Exit, own *Outcome, err error) {
	leak := &leakWatch{began: time.Now()}
	watch := &hangWatch{after: w.Hang, now: time.Now, saved: w.lastSaved}
	watch.alive()
	wanted := func() error {
		if ctx.Err() != nil { // the request came between two lives, when there was no child to receive it
			return harness.ErrInterrupted
		}
		return nil
	}
	child, err := Start(c, ChildOptions{Log: heard{log, watch.alive}, Trouble: w.Trouble, Before: wanted, Standby: w.Standby})
	w.Standby = nil
	if err != nil {
		return Exit{}, nil, err
	}
	w.child.Store(child)
	if w.Started != nil {
		w.Started()
	}
	trace := &gpuTrace{c: c, list: w.gpus(), mine: child.Owns, uses: watch.onGPU}
	watching, end := context.WithCancel(context.WithoutCancel(ctx))
	seen := trace.watch(watching)
	own = w.attend(child, watch, leak)
	exit = child.Wait() // whoever asked us to stop has asked the child too: signals are passed on
	end()
	exit.Stopped = exit.Stopped && own == nil || ctx.Err() != nil
	if exit.Code != 0 { // otherwise these are of no interest, and NVML may take longer than the command
		exit.GPUs, exit.Ranks = <-seen, w.rankErrors(c, exit.Began)
		for _, holder := range trace.drain(ctx, harness.Sleep) {
			w.Trouble(fmt.Errorf("%s still holds memory %v after the command has ended", holder, drainPatience))
		}
	}
	return exit, own, nil
}

// byUs is the outcome of a life that headroom ended.
func byUs(kind Kind, why string) *Outcome {
	return &Outcome{Kind: kind, Confidence: Certain, Reasons: []string{why}, Rank: -1, Device: -1}
}

// attend waits for the child to end, and meanwhile checks whether it hangs and whether its
// memory would run out before its next checkpoint. If so, it ends the child where that is allowed.
func (w *Wrapped) attend(child *Child, hang *hangWatch, leak *leakWatch) (own *Outcome) {
	leaks := w.RunsOut != nil && w.Resumes()
	every := hangEvery
	if leaks {
		every = leaksEvery
	}
	switch {
	case w.Hang > 0:
		every = min(every, max(time.Millisecond, w.Hang/4))
	case !leaks:
		<-child.Done()
		return nil
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-child.Done():
			return own
		case <-tick.C:
		}
		if own != nil {
			continue // the child has already been asked to end
		}
		if leaks {
			own = w.leaks(leak)
		}
		if own == nil && hang.hangs() {
			own = w.hangs(hang, child.Pid())
		}
		if own != nil {
			child.Stop()
		}
	}
}

// hangs is the outcome of ending a hanging command; without Restart it only reports the hang.
func (w *Wrapped) hangs(watch *hangWatch, pid int) *Outcome {
	if !w.Restart {
		w.Trouble(fmt.Errorf("%s: the command may be hanging; py-spy dump --pid %d shows where it is stuck, and --restart-hung would start it again from its newest checkpoint", watch.why(), pid))
		return nil
	}
	return byUs(Hung, watch.why())
}

// leaks is the outcome of ending a leaking command; without Leave it only reports the leak.
func (w *Wrapped) leaks(watch *leakWatch) *Outcome {
	out := w.RunsOut()
	if out.At.IsZero() && watch.saved.IsZero() { // looking for checkpoints reads the disk
		return nil
	}
	if !watch.due(w.complete(), out) {
		return nil
	}
	if !w.Leave {
		w.Trouble(fmt.Errorf("%s; --restart-leaking would start the command again just after a checkpoint", watch.why(out)))
		return nil
	}
	return byUs(Leaking, watch.why(out))
}

const (
	hangEvery  = 15 * time.Second // how often to check whether the command hangs
	leaksEvery = 2 * time.Second  // how often to check whether it leaks: what it trains after a checkpoint has to be redone
)

// lastSaved is when the newest checkpoint was written to, complete or not.
func (w *Wrapped) lastSaved() time.Time {
	if w.Match == nil {
		return time.Time{}
	}
	found, err := w.Match.Checkpoints(time.Now(), w.Begun)
	if err != nil || len(found.All) == 0 {
		return time.Time{}
	}
	return found.All[0].Time
}

// complete is when each complete checkpoint was written, newest first.
func (w *Wrapped) complete() (all []time.Time) {
	found, err := w.Match.Checkpoints(time.Now(), w.Begun)
	if err != nil {
		return nil
	}
	for _, c := range found.All {
		if c.Problem == "" {
			all = append(all, c.Time)
		}
	}
	return all
}

// rankErrors are the errors that a launcher's workers left during this life in the log
// folder that the command names.
func (w *Wrapped) rankErrors(c Command, begun time.Time) []RankError {
	launch, err := Peel(c)
	if err != nil {
		return nil
	}
	logs, ok := launch.option("log_dir")
	if !ok || logs.value == "" {
		return nil
	}
	ranks, notes := ReadRankErrors(os.DirFS(below(c.Dir, logs.value)))
	for _, note := range notes {
		w.Trouble(errors.New(note))
	}
	return slices.DeleteFunc(ranks, func(r RankError) bool { return r.Time.Before(begun) })
}
