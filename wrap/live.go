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

// behind is what the lives of a command have left running.
type behind struct {
	newest   []child.Left // what the newest life has left
	earlier  []child.Left // what earlier lives have left, and headroom has left alone
	training []int        // PIDs of the processes of the newest life that are still training
	trace    *gpuTrace    // of the newest life
}

// Clear makes room for another life: it ends what the newest life has left running and still
// holds a GPU or the run's files, or is still training, and waits until that life's GPU memory is
// free again. It leaves everything else alone. It returns a sentence about what it has ended, or
// "".
func (w *Wrapped) Clear(ctx context.Context) string {
	var inTheWay []child.Left
	var what string
	if len(w.behind.newest) > 0 { // looking for checkpoints reads the disk
		gpus, places := w.behind.trace.holders(), w.places()
		inTheWay, w.behind.newest, what = child.Split(w.behind.newest, func(l child.Left) string {
			switch {
			case slices.Contains(gpus, l.PID):
				return "a GPU"
			case slices.Contains(w.behind.training, l.PID):
				return "the training, which it went on with"
			}
			return l.Holds(places)
		})
	}
	text := ""
	if len(inTheWay) > 0 {
		text = fmt.Sprintf("the command left %s running, and headroom ended it before the next start, since it held %s", child.LeftText(inTheWay), what)
		child.End(inTheWay, child.Grace, w.Trouble)
	}
	if w.behind.trace != nil {
		for _, holder := range w.behind.trace.drain(ctx, harness.Sleep) {
			w.Trouble(fmt.Errorf("%s still holds memory %v after the command ended", holder, drainPatience))
		}
	}
	return text
}

// LeftText returns a sentence that names the processes which the command has left running, and
// which are still running, or "" if there are none.
func (w *Wrapped) LeftText() string {
	all := slices.DeleteFunc(slices.Concat(w.behind.earlier, w.behind.newest), func(l child.Left) bool { return !l.Runs() })
	if len(all) == 0 {
		return ""
	}
	return child.LeftRunning(all)
}

// places returns the paths of the run's files: its folder, and where the command keeps its
// checkpoints. That is a folder if they have one of their own, or else the checkpoints themselves.
func (w *Wrapped) places() (all []string) {
	if w.Folder != "" {
		all = append(all, command.Resolved(w.Folder))
	}
	if w.Match == nil {
		return all
	}
	if place := checkpoints.Place(w.Match); place != "" && place != command.Resolved(w.Command.Dir) {
		return append(all, place)
	}
	found, err := checkpoints.Find(w.Match, time.Now(), w.past())
	if err != nil {
		return all // it is not known where they are
	}
	for _, c := range found.All {
		all = append(all, command.Resolved(w.Command.From(c.Path)))
	}
	return all
}

// byUs returns the outcome of a life that headroom ended.
func byUs(kind exits.Kind, why string) *exits.Outcome {
	return &exits.Outcome{Kind: kind, Confidence: exits.Certain, Reasons: []string{why}, Rank: -1, Device: -1}
}

// attend waits for the child to end. Meanwhile it checks whether the child hangs, and
// whether memory would run out before the next checkpoint. In either case, attend ends
// the child if w allows it. own is the outcome if attend ended the child, and nil
// otherwise.
func (w *Wrapped) attend(child *child.Child, hang *hangWatch, leak *leakWatch) (own *exits.Outcome) {
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

// hangs returns the outcome of a hanging command that is to be ended. If w.Restart is not
// set, it only reports the hang, and returns nil.
func (w *Wrapped) hangs(watch *hangWatch, pid int) *exits.Outcome {
	if !w.Restart {
		w.Trouble(fmt.Errorf("%s: the command may be hanging; py-spy dump --pid %d shows where it is stuck, and --restart-hung would start it again from its newest checkpoint", watch.why(), pid))
		return nil
	}
	return byUs(exits.Hung, watch.why())
}

// leaks returns the outcome of a leaking command if now is the time to end it, and nil if
// not. If w.Leave is not set, it only reports the leak, and returns nil.
func (w *Wrapped) leaks(watch *leakWatch) *exits.Outcome {
	out := w.RunsOut()
	if out.At.IsZero() && watch.saved.IsZero() { // do not look for checkpoints, which reads the disk
		return nil
	}
	if !watch.due(w.complete(), out) {
		return nil
	}
	if !w.Leave {
		w.Trouble(fmt.Errorf("%s; --restart-leaking would start the command again just after a checkpoint", watch.why(out)))
		return nil
	}
	return byUs(exits.Leaking, watch.why(out))
}

const (
	hangEvery  = 15 * time.Second // how often to check whether the command hangs
	leaksEvery = 2 * time.Second  // how often to check whether it leaks: a restart loses the steps since the checkpoint
)

// lastSaved returns when the newest checkpoint, complete or not, was last written to. It
// returns the zero time if there is none.
func (w *Wrapped) lastSaved() time.Time {
	if w.Match == nil {
		return time.Time{}
	}
	found, err := checkpoints.Find(w.Match, time.Now(), w.past())
	if err != nil || len(found.All) == 0 {
		return time.Time{}
	}
	return found.All[0].Time
}

// complete returns when each complete checkpoint was written, newest first.
func (w *Wrapped) complete() (all []time.Time) {
	past := w.past()
	past.Still = w.seen
	found, err := checkpoints.Find(w.Match, time.Now(), past)
	if err != nil {
		return nil
	}
	w.seen = found.Marks()
	for _, c := range found.All {
		if c.Problem == "" {
			all = append(all, c.Time)
		}
	}
	return all
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
