package job

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"headroom/memory"
	"headroom/runs"
	"headroom/worker"
	"headroom/wrap"
	"headroom/wrap/command"
	"headroom/wrap/exits"
)

// inside is a [wrap.Inside]: the worker, and what it has seen in the outcome of an attempt.
type inside struct {
	worker.Options // of every attempt
	to             wrap.Reporter
	found          *runs.Found // what a trial has found before; nil if there was none, or once it has been recorded

	line    command.Line        // the command of the newest attempt
	attempt *worker.Attempt     // nil between two attempts, and if the worker could not be set up
	failed  error               // why it could not
	tracked map[string][]string // the runs that the newest attempt had open in trackers, or the one before if it had none
	blind   bool                // it is not known how many steps the newest attempt has made
}

// Begin implements [wrap.Inside]. If the worker cannot be set up, the command runs without it.
func (i *inside) Begin(c command.Line) command.Line {
	i.line, i.blind = c, true
	if i.found != nil {
		i.Journal.Note(runs.Entry{Kind: runs.KindWorker, Text: "--micro auto: " + i.found.String()})
		i.found = nil
	}
	if i.attempt, i.failed = worker.Begin(i.Options); i.failed == nil {
		c.Env = continued(i.attempt.Env(c.Env), i.tracked)
		i.Journal.Answers(i.attempt.Socket())
	}
	return c
}

// End implements [wrap.Inside].
func (i *inside) End(o exits.Outcome) exits.Outcome {
	if i.failed != nil {
		return i.ended(o, worker.Ended{Failed: i.failed.Error()})
	}
	seen, err := i.attempt.End()
	if i.attempt = nil; err != nil {
		i.to.Warn("the worker's folder is left behind: %v", err)
	}
	if len(seen.Tracked) > 0 { // otherwise it has not come that far
		i.tracked = seen.Tracked
	}
	i.blind = !seen.Attached && !seen.Torch
	return i.ended(o, seen)
}

// Made implements [wrap.Inside].
func (i *inside) Made() int {
	if i.blind {
		return -1
	}
	return i.Journal.Made()
}

// RunsOut implements [wrap.Inside].
func (i *inside) RunsOut() (at time.Time, why string) {
	if i.attempt == nil {
		return at, why
	}
	return i.attempt.RunsOut()
}

// ended returns the outcome of an attempt with what the worker saw added to it. If the attempt
// failed and the worker was never attached, ended records why.
func (i *inside) ended(o exits.Outcome, seen worker.Ended) exits.Outcome {
	o.Mixed, o.Training = seen.Mixed, seen.Training
	if seen.Holder != nil && i.Joined != nil && o.Kind.Memory() {
		h := i.Joined(*seen.Holder)
		h.Ends = 0
		seen.Holder = &h
		i.Journal.Note(runs.Entry{Kind: runs.KindWorker, Holder: &h}.Told()) // as of the failure, for the report
	}
	switch {
	case seen.OOM != nil:
		return ranOut(o, seen)
	case seen.Holder != nil && o.Kind.Memory():
		return grown(o, seen.Holder)
	case seen.Attached || !o.Kind.Memory() && o.Kind != exits.Failed:
		return o
	}
	why := errors.New("not attached: " + unattached(i.line, seen))
	if seen.Failed == "" && seen.Watches != "" { // it would have done nothing in any case
		why = errors.New("only watching: " + unattached(i.line, seen))
	}
	i.Journal.Note(runs.Entry{Kind: runs.KindWorker, Text: why.Error()})
	if o.Kind.Memory() {
		i.to.Say("the worker was %v", why)
	}
	return o
}

// ranOut returns o with the failure that the worker has seen, and with what would help against it.
func ranOut(o exits.Outcome, seen worker.Ended) exits.Outcome {
	o = o.FromInside(memory.Evidence{Failure: *seen.OOM, Boundary: seen.Boundary, Every: seen.Every, Holder: seen.Holder}, seen.Where)
	o = grown(o, seen.Holder)
	if o.Hint == "" && o.Kind.Memory() {
		o.Hint = helps(seen)
	}
	if e := o.Evidence; e != nil && o.Kind.Memory() && memory.Diagnose(*e).Cause == memory.Fragmentation {
		o.Hint = cmp.Or(e.Failure.Fragments.Hint(e.Failure.Requested, e.Failure.Stats.Free), o.Hint)
	}
	return o
}

// grown returns o with what holds memory that grows, unless o has it already or nothing is known to grow.
func grown(o exits.Outcome, h *memory.Holder) exits.Outcome {
	if h == nil || o.Evidence != nil && o.Evidence.Holder != nil {
		return o
	}
	return o.Grown(*h)
}

// joined returns a [worker.Options.Joined] for a command. Its script is read once, at the first call.
func joined(line command.Line, version string) func(memory.Holder) memory.Holder {
	read := sync.OnceValue(func() []worker.Finding { return Read(context.Background(), line, version).Findings })
	return func(h memory.Holder) memory.Holder {
		h, _ = worker.Joined(h, read(), line.Dir)
		return h
	}
}

// helps returns what would help against a failure that the worker has seen, or "" if it is not
// known.
func helps(seen worker.Ended) string {
	if seen.Hint == "" && seen.Mixed != "" {
		return "a smaller batch would train something else; activation checkpointing in the model, or a GPU with more memory, would not"
	}
	return seen.Hint
}

// unattached says why no process of the command c reported to headroom.
func unattached(c command.Line, seen worker.Ended) string {
	switch {
	case seen.Failed != "":
		return seen.Failed
	case seen.Watches != "":
		return seen.Watches
	case seen.Torch:
		return "torch was imported, but no optimizer took a step"
	case c.Isolated() != "":
		return fmt.Sprintf("python %s ignores PYTHONPATH or skips the site module, and the worker needs both", c.Isolated())
	case seen.Python:
		return "torch was never imported"
	}
	return "no Python process read PYTHONPATH: the command starts none, or replaces the environment"
}
