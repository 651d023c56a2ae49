package main

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"headroom/cmd/headroom/ui"
	"headroom/harness"
	"headroom/memory"
	"headroom/runs"
	"headroom/worker"
	"headroom/wrap"
	"headroom/wrap/command"
	"headroom/wrap/exits"
)

// firstBeat is how long after its start a life of the command is first recorded as still
// running. A life that is shorter needs no such record. beatEvery is the interval between
// further records.
const firstBeat, beatEvery = time.Second, 15 * time.Second

// beat records at intervals that a life is still running, until stop is called.
func beat(j harness.Journal) (stop func()) {
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		next := time.NewTimer(firstBeat)
		defer next.Stop()
		for {
			select {
			case <-quit:
				j.Beat(0)
				return
			case <-next.C:
				j.Beat(beatEvery)
				next.Reset(beatEvery)
			}
		}
	}()
	return func() { close(quit); <-done }
}

// inside sets up the worker that watches the lives of a command from inside the command's
// processes. A life is one start of the command, with all that happens until its end.
type inside struct {
	u       *ui.UI
	journal harness.Journal
	mode    worker.Mode
	allow   []string
	life    atomic.Pointer[worker.Life]
	blind   bool // it is not known how many steps the newest life has made
}

// mode returns how much the worker may do.
func (w *wrapped) mode() worker.Mode {
	if w.request.Observe || w.request.WatchOnly {
		return worker.Observe
	}
	return worker.Armed
}

// begin implements [wrap.Wrapped].Inside. If the worker cannot be set up, the command runs
// without it.
func (i *inside) begin(c command.Line) (command.Line, func(exits.Outcome) exits.Outcome) {
	life, err := worker.Begin(worker.Options{Mode: i.mode, Books: i.journal, Version: readBuild().Version, Allow: i.allow})
	i.blind = true
	if err != nil {
		return c, func(o exits.Outcome) exits.Outcome { return i.ended(c, o, worker.Ended{Failed: err.Error()}) }
	}
	i.life.Store(life)
	within := c
	within.Env = life.Env(c.Env)
	return within, func(o exits.Outcome) exits.Outcome {
		i.life.Store(nil)
		seen, err := life.End()
		if err != nil {
			i.u.Warn("the worker's folder is left behind: %v", err)
		}
		i.blind = !seen.Attached && !seen.Torch
		return i.ended(c, o, seen)
	}
}

// stepsMade implements [wrap.RunOptions].Made.
func (i *inside) stepsMade() int {
	if i.blind {
		return -1
	}
	return i.journal.Made()
}

// runsOut implements [wrap.Wrapped].RunsOut.
func (i *inside) runsOut() (out wrap.RunsOut) {
	if life := i.life.Load(); life != nil {
		out.At, out.Why = life.RunsOut()
	}
	return out
}

// ended returns the outcome of a life with what the worker saw added to it. If the life failed
// and the worker was never attached, ended records why.
func (i *inside) ended(c command.Line, o exits.Outcome, seen worker.Ended) exits.Outcome {
	o.Mixed, o.Training = seen.Mixed, seen.Training
	switch {
	case seen.OOM != nil:
		o = o.FromInside(memory.Evidence{Failure: *seen.OOM, Boundary: seen.Boundary, Every: seen.Every}, seen.Where)
		if o.Hint == "" && o.Kind.Memory() {
			o.Hint = helps(seen)
		}
		return o
	case seen.Attached || !o.Kind.Memory() && o.Kind != exits.Failed:
		return o
	}
	why := errors.New("not attached: " + unattached(c, seen))
	if seen.Failed == "" && seen.Watches != "" { // it would have done nothing in any case
		why = errors.New("only watching: " + unattached(c, seen))
	}
	i.journal.Note(runs.Entry{Kind: runs.KindWorker, Text: why.Error()})
	if o.Kind.Memory() {
		i.u.Say("the worker was %v", why)
	}
	return o
}

// helps returns what would help against a failure that the worker has seen, or "" if it is not
// known.
func helps(seen worker.Ended) string {
	if seen.Allow != "" {
		return "run the command again with --allow " + seen.Allow + ", if it is acceptable that the gradients are approximate"
	}
	if seen.Hint == "" && seen.Mixed != "" {
		return "a smaller batch would train something else; activation checkpointing in the model, or a GPU with more memory, would not"
	}
	return seen.Hint
}

// unattached says why no process of the command reported to headroom.
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
