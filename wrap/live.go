package wrap

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"headroom/harness"
	"headroom/machine"
	"headroom/memory"
	"headroom/nvml"
	"headroom/recovery"
	"headroom/runs"
	"headroom/wrap/checkpoints"
	"headroom/wrap/child"
	"headroom/wrap/command"
	"headroom/wrap/exits"
	"headroom/wrap/rewrite"
)

// Wrapped is a command that is ready to run, together with what is known about it. Its
// methods provide the functions that [RunOptions] needs.
type Wrapped struct {
	Command command.Line
	Match   *rewrite.Match // if nil, nothing is known about the command, and it is never changed
	Asked   recovery.Plan  // the plan that the command asks for, according to Match
	Trust   bool           // the user vouches for the conditions in an UnprovenError
	Mixed   string         // how the result was seen to depend on which rows are in a batch together, or ""; see MixedError
	Run     string         // name of the run, which the command finds in HEADROOM_RUN
	Folder  string         // the run's folder
	Begun   time.Time      // when the run began: older checkpoints belong to another training run

	Free    memory.Bytes  // memory that each of its GPUs must have free before a life begins; 0 means no check
	Hang    time.Duration // time without a sign of life after which the command counts as hanging; 0 means no check
	Restart bool          // whether to end a hanging command, and start it again from its newest checkpoint

	// RunsOut returns when memory will run out, according to a worker inside the command.
	// It is called regularly, and is nil if there is no worker. If Leave is set, a command
	// whose memory would run out before its next checkpoint is ended just after a
	// checkpoint, and started again from that checkpoint.
	RunsOut func() RunsOut
	Leave   bool

	Log     func(attempt int) (io.WriteCloser, error) // opens the log of an attempt's output; if nil, there is no log
	Number  func() int                                // returns the number of the current attempt
	Trouble func(error)                               // receives problems around the command, and warnings that it may hang or leak
	Said    func(rewrite.Result)                      // receives each changed command before its start; may be nil
	Started func(runs.Process)                        // called after each start, when the command is already running; may be nil
	Skipped func(string)                              // receives, before a later life begins, why newer checkpoints are not used; may be nil
	Keep    func(runs.Known)                          // receives what is known of the checkpoints when that has changed; may be nil

	// Made returns how many optimizer steps the newest life has made, or -1 if that is not
	// known. It may be nil.
	Made func() int

	// Inside prepares to watch a life from inside its processes. It returns the command
	// to start in place of the given one, and a function to call once the life has ended.
	// That function, ended, gets the outcome as seen from outside, or the
	// zero Outcome if the command was not started, and returns the outcome to report.
	// Inside may be nil.
	Inside func(command.Line) (_ command.Line, ended func(exits.Outcome) exits.Outcome)

	child   atomic.Pointer[child.Child] // of the newest life
	list    func() ([]nvml.GPU, error)  // nvml.GPUs, if nil
	mu      sync.Mutex                  // guards known, listed, listing and doubted
	known   runs.Known                  // of the checkpoints
	listed  bool                        // known.Before is complete
	listing chan []runs.Mark            // receives known.Before when List has found it; nil if it has been received
	skipped []string                    // why checkpoints that seem newer than the one from which the next life resumes are not used
	lived   bool                        // a life of this run has ended, in this process or in an earlier one
	doubted []runs.Mark                 // the command could not resume from these, for whatever reason
	ran     bool                        // the same, in this process
	base    int                         // the step with which the newest life began; -1 if that is not known
	writers *checkpoints.Writers        // who writes checkpoints, as far as it has been seen
	seen    []runs.Mark                 // the checkpoints that complete found last
	aside   []checkpoints.Rename        // of incomplete checkpoints that the next life would otherwise choose
	decides bool                        // the newest life ended in a way after which another life may resume from a checkpoint
	behind  behind                      // what lives have left running
}

// UnprovenError says that a change keeps the training the same only under conditions
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

// MixedError says that a smaller micro-batch would not keep the training the same, as the
// worker saw in a step that it refused. Unlike an [UnprovenError], it is not a matter of trust.
type MixedError struct{ Why string }

func (e *MixedError) Error() string {
	return "a smaller micro-batch would train something else, even with accumulation: " + e.Why + "; if that is acceptable, give the command a smaller batch yourself"
}

// Resumes reports whether headroom can make the command resume from a checkpoint.
func (w *Wrapped) Resumes() bool { return w.Match != nil && w.Match.Profile.Resume.Mode != "none" }

// Chooses reports whether headroom, and not the command, chooses the checkpoint to resume from.
func (w *Wrapped) Chooses() bool { return w.Match != nil && w.Match.Profile.Resume.Mode == "path" }

// Prepare returns the command to start with a plan, from a checkpoint or, if from is
// nil, from the beginning. If nothing has to change, that is the user's own command. An
// [*UnprovenError] says that w.Trust is needed; a [*MixedError], that the plan would change the
// training.
func (w *Wrapped) Prepare(plan recovery.Plan, from *Saved, fallbacks ...string) (rewrite.Result, error) {
	if w.Match == nil || plan == w.Asked && from == nil && len(fallbacks) == 0 {
		return rewrite.Result{Command: w.Command, Plan: plan}, nil
	}
	if w.Mixed != "" && plan.Largest() < w.Asked.Largest() {
		return rewrite.Result{}, &MixedError{w.Mixed}
	}
	resume := rewrite.Resume{}
	if from != nil {
		resume = rewrite.Resume{From: from.checkpoint.Path, Problem: from.checkpoint.Problem, Micro: from.Micro, Versions: rewrite.Versions(w.Match)}
	}
	next, err := rewrite.To(w.Match, plan, resume, fallbacks...)
	if err != nil {
		return next, err
	}
	if len(next.Prove) > 0 && !w.Trust {
		return next, &UnprovenError{next.Prove}
	}
	return next, nil
}

// Live runs one life: it prepares, starts and watches the command, and returns why the
// command ended. Cancelling ctx means that the user has asked to stop: nothing more is
// started. The cancellation does not end a child that is already running, which gets the
// user's signal in any case.
func (w *Wrapped) Live(ctx context.Context, b Beginning) (exits.Outcome, command.Exit, error) {
	next, err := w.ready(ctx, b)
	if err != nil {
		return exits.Outcome{}, command.Exit{}, err
	}
	if w.lived && w.Skipped != nil {
		for _, why := range w.skipped {
			w.Skipped(why)
		}
	}
	w.lived, w.ran, w.base = true, true, baseOf(w.Match, b.From)
	if w.Said != nil && len(next.Changes) > 0 {
		w.Said(next)
	}
	log := w.log()
	c, ended := w.named(next.Command, b.Plan), func(o exits.Outcome) exits.Outcome { return o }
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
		return ended(exits.Outcome{}), exit, err
	}
	var outcome exits.Outcome
	if own != nil {
		outcome, w.decides = ended(*own), true
	} else {
		if outcome = exits.Classify(exit); outcome.Kind == exits.OutOfHostMemory {
			outcome = outcome.InHostMemory(exit.GPUs, machine.LookAtMemory().Most())
		}
		outcome = ended(outcome)
		w.Mixed = cmp.Or(outcome.Mixed, w.Mixed)
		w.decides = outcome.Kind.Memory() || outcome.Kind == exits.DeviceGone
	}
	w.behind.training = outcome.Training
	return outcome, exit, nil
}

// ready prepares a life: when it returns, memory is free and the files of the command to start are
// written.
func (w *Wrapped) ready(ctx context.Context, b Beginning) (rewrite.Result, error) {
	next, err := w.Prepare(b.Plan, b.From, b.Fallbacks...)
	if err == nil {
		err = w.gate(ctx)
	}
	if err == nil {
		err = checkpoints.SetAside(w.Command, w.aside)
	}
	if err == nil {
		err = next.Write()
	}
	return next, err
}

// log opens the log of the current attempt. It returns nil if there is none.
func (w *Wrapped) log() io.WriteCloser {
	if w.Log == nil {
		return nil
	}
	log, err := w.Log(w.Number())
	if err != nil {
		w.Trouble(fmt.Errorf("the attempt has no log: %w", err))
		return nil
	}
	return log
}

// named returns c with environment variables that give its run, the number of its attempt, the
// run's folder and, if its plan is known, its micro-batch.
func (w *Wrapped) named(c command.Line, plan recovery.Plan) command.Line {
	c.Env = append(c.Env[:len(c.Env):len(c.Env)], "HEADROOM_RUN="+w.Run, "HEADROOM_ATTEMPT="+strconv.Itoa(w.Number()))
	if w.Folder != "" {
		c.Env = append(c.Env, child.FolderMark+command.Resolved(w.Folder))
	}
	if w.Match != nil {
		c.Env = append(c.Env, "HEADROOM_MICRO="+strconv.Itoa(plan.Largest()))
	}
	return c
}

// BreakLine calls [child.Child.BreakLine] for the newest life. It returns false before the
// first life.
func (w *Wrapped) BreakLine() bool {
	child := w.child.Load()
	return child != nil && child.BreakLine()
}

// gate waits until every GPU of the command has at least w.Free of free memory. If ctx
// is cancelled first, the error wraps [harness.ErrInterrupted].
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

// start runs and watches one life of c. own is the outcome if headroom ended the life, and nil otherwise.
func (w *Wrapped) start(ctx context.Context, c command.Line, log io.Writer) (exit command.Exit, own *exits.Outcome, err error) {
	leak := &leakWatch{began: time.Now()}
	watch := &hangWatch{after: w.Hang, now: time.Now, saved: w.lastSaved}
	watch.alive()
	wanted := func() error {
		if ctx.Err() != nil { // the request came between two lives, when there was no child to receive it
			return harness.ErrInterrupted
		}
		return nil
	}
	if w.Resumes() && w.writers == nil {
		if root, glob := checkpoints.Absolute(w.Match); glob != "" {
			w.writers = checkpoints.Watch(root, glob)
		}
	}
	child, err := child.Start(c, child.Options{Leave: true, Log: heard{log, watch.alive}, Trouble: w.Trouble, Before: wanted})
	if err != nil {
		return command.Exit{}, nil, err
	}
	w.child.Store(child)
	w.writers.Follow(child.Owns)
	if w.Started != nil {
		w.Started(child.Identity())
	}
	trace := &gpuTrace{c: c, list: w.gpus(), mine: child.Owns, uses: watch.onGPU}
	watching, end := context.WithCancel(context.WithoutCancel(ctx))
	seen := trace.watch(watching)
	own = w.attend(child, watch, leak)
	exit = child.Wait() // a request to stop reaches the child, too: signals are passed on
	end()
	exit.Stopped = exit.Stopped && own == nil || ctx.Err() != nil
	if exit.Code != 0 { // after a success nobody needs these, and NVML may take longer than the command
		exit.GPUs, exit.Ranks = <-seen, w.rankErrors(c, exit.Began)
	}
	w.behind = behind{newest: child.Left(), earlier: append(w.behind.earlier, w.behind.newest...), trace: trace}
	return exit, own, nil
}

// rankErrors returns the errors that a launcher's workers wrote during this life, which
// began at begun, to the log folder that the command names.
func (w *Wrapped) rankErrors(c command.Line, begun time.Time) []command.RankError {
	launch, err := command.Peel(c)
	if err != nil {
		return nil
	}
	logs, ok := launch.Option("log_dir")
	if !ok || logs.Value == "" {
		return nil
	}
	ranks, notes := exits.ReadRankErrors(os.DirFS(c.From(logs.Value)))
	for _, note := range notes {
		w.Trouble(errors.New(note))
	}
	return slices.DeleteFunc(ranks, func(r command.RankError) bool { return r.Time.Before(begun) })
}
