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
	"time"

	"headroom/harness"
	"headroom/machine"
	"headroom/recovery"
	"headroom/runs"
	"headroom/wrap/checkpoints"
	"headroom/wrap/child"
	"headroom/wrap/command"
	"headroom/wrap/exits"
	"headroom/wrap/rewrite"
)

// check returns the reason why no attempt could begin as b says, or nil if one could.
func (w *Wrapped) check(b beginning) error {
	if err := child.Rival(w.Runs, w.Folder.Dir(), w.place); err != nil {
		return err
	}
	_, err := w.prepare(b.Plan, b.From, b.fallbacks()...)
	return err
}

// attempt runs one attempt: it prepares, starts and watches the command, and returns why the
// command ended. Cancelling ctx means that the user has asked to stop: nothing more is
// started. The cancellation does not end a child that is already running, which gets the
// user's signal in any case.
func (w *Wrapped) attempt(ctx context.Context, b beginning) (exits.Outcome, command.Exit, error) {
	defer w.journal.Beat()()
	next, err := w.ready(ctx, b)
	if err != nil {
		return exits.Outcome{}, command.Exit{}, err
	}
	if w.attempted {
		for _, why := range w.skipped {
			w.journal.Note(runs.Entry{Kind: runs.KindWarning, Text: why})
		}
	}
	first := !w.ran
	w.attempted, w.ran, w.base = true, true, baseOf(w.Match, b.From)
	if len(next.Changes) > 0 {
		w.journal.Note(runs.Entry{Kind: runs.KindRemedy, Text: "in the command: " + changesText(next.Changes)})
	}
	log := w.log()
	c, ended := w.named(next.Command, b.Plan), func(o exits.Outcome) exits.Outcome { return o }
	if w.Inside != nil {
		c, ended = w.Inside.Begin(c), w.Inside.End
	}
	exit, own, err := w.start(ctx, c, log, first)
	if log != nil {
		if closed := log.Close(); closed != nil {
			w.trouble(closed)
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
		w.mixed = cmp.Or(outcome.Mixed, w.mixed)
		w.decides = outcome.Kind.Memory() || outcome.Kind == exits.DeviceGone
	}
	w.behind.training = outcome.Training
	return outcome, exit, nil
}

// trouble reports a problem around the command. Any goroutine may call it.
func (w *Wrapped) trouble(err error) { w.Reporter.Warn("%v", err) }

// ready prepares an attempt: when it returns, memory is free and the files of the command to start are
// written.
func (w *Wrapped) ready(ctx context.Context, b beginning) (rewrite.Result, error) {
	next, err := w.prepare(b.Plan, b.From, b.fallbacks()...)
	if err == nil {
		err = w.gate(ctx)
	}
	if err == nil {
		err = checkpoints.SetAside(w.Line, w.aside)
	}
	if w.Nodes != nil {
		next.Clone = nil // node 0 has written it
	}
	if err == nil {
		err = next.Write()
	}
	return next, err
}

// log opens the log of the current attempt. It returns nil if there is none.
func (w *Wrapped) log() io.WriteCloser {
	log, err := w.Folder.Output(w.journal.Number())
	if err != nil {
		w.trouble(fmt.Errorf("the attempt has no log: %w", err))
		return nil
	}
	return log
}

// named returns c with environment variables that give its run, the number of its attempt, the
// run's folder and, if its plan is known, its micro-batch.
func (w *Wrapped) named(c command.Line, plan recovery.Plan) command.Line {
	c.Env = append(c.Env[:len(c.Env):len(c.Env)], "HEADROOM_RUN="+w.Name(), "HEADROOM_ATTEMPT="+strconv.Itoa(w.journal.Number()), child.FolderMark+command.Resolved(w.Folder.Dir()))
	if w.Match != nil {
		c.Env = append(c.Env, "HEADROOM_MICRO="+strconv.Itoa(plan.Largest()))
	}
	return c
}

// gate waits until every GPU of the command has at least w.Free of free memory. If ctx
// is cancelled first, the error wraps [harness.ErrInterrupted].
func (w *Wrapped) gate(ctx context.Context) error {
	trace, said := &gpuTrace{c: w.Line, list: w.gpus}, false
	for w.Free > 0 {
		short := trace.short(w.Free)
		if len(short) == 0 {
			break
		}
		if !said {
			w.trouble(fmt.Errorf("waiting until %v is free: %s", w.Free, strings.Join(short, "; ")))
			said = true
		}
		if err := harness.Sleep(ctx, gateEvery); err != nil {
			return fmt.Errorf("stopped while waiting for free memory: %w: %w", harness.ErrInterrupted, err)
		}
	}
	return nil
}

// gateEvery is how often the gate checks the GPUs.
const gateEvery = 5 * time.Second

// start runs and watches one attempt with c; first says that it is the first in this process.
// own is the outcome if headroom ended the attempt, and nil otherwise.
func (w *Wrapped) start(ctx context.Context, c command.Line, log io.Writer, first bool) (exit command.Exit, own *exits.Outcome, err error) {
	leak := &leakWatch{began: time.Now()}
	watch := &hangWatch{after: w.Hang, now: time.Now, saved: w.lastSaved}
	watch.alive()
	wanted := func() error {
		if ctx.Err() != nil { // the request came between two attempts, when there was no child to receive it
			return harness.ErrInterrupted
		}
		return nil
	}
	if w.resumes() && w.writers == nil {
		if root, glob := checkpoints.Absolute(w.Match); glob != "" {
			w.writers = checkpoints.Watch(root, glob)
		}
	}
	child, err := child.Start(c, child.Options{Leave: true, Log: heard{log, watch.alive}, Trouble: w.trouble, Before: wanted})
	if err != nil {
		return command.Exit{}, nil, err
	}
	w.child.Store(child)
	w.writers.Follow(child.Owns)
	w.started(child.Identity(), first)
	trace := &gpuTrace{c: c, list: w.gpus, mine: child.Owns, uses: watch.onGPU}
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

// rankErrors returns the errors that a launcher's workers wrote during this attempt, which
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
		w.trouble(errors.New(note))
	}
	return slices.DeleteFunc(ranks, func(r command.RankError) bool { return r.Time.Before(begun) })
}
