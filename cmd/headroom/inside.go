package main

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"headroom/harness"
	"headroom/memory"
	"headroom/runs"
	"headroom/worker"
	"headroom/wrap"
)

// books are a session's while a life lasts, when both the worker and what follows the
// start write in them.
type books struct {
	mu sync.Mutex
	*harness.Session
}

// Note is the session's.
func (b *books) Note(e runs.Entry) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.Session.Note(e)
}

// Survived is the session's.
func (b *books) Survived(e runs.Entry) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.Session.Survived(e)
}

// Stepped is the session's.
func (b *books) Stepped(s runs.ProcessStep) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.Session.Stepped(s)
}

// KeepPieces is the session's.
func (b *books) KeepPieces(rows int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.Session.KeepPieces(rows)
}

// firstBeat is when a life is first noted to last: a short one costs nothing. beatEvery is
// how often after that.
const firstBeat, beatEvery = time.Second, 15 * time.Second

// beat notes that a life lasts, until stop.
func (b *books) beat() (stop func()) {
	quit, done := make(chan struct{}), make(chan struct{})
	say := func(every time.Duration) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.Beat(every)
	}
	go func() {
		defer close(done)
		next := time.NewTimer(firstBeat)
		defer next.Stop()
		for {
			select {
			case <-quit:
				say(0)
				return
			case <-next.C:
				say(beatEvery)
				next.Reset(beatEvery)
			}
		}
	}()
	return func() { close(quit); <-done }
}

// inside looks after the lives of a command from inside its processes.
type inside struct {
	u     *ui
	books *books
	mode  worker.Mode
	ready *worker.Standby // of the first life; may be nil
	life  atomic.Pointer[worker.Life]
}

// mode is how much the worker may do.
func (w *wrapped) mode() worker.Mode {
	if w.request.Observe || w.request.WatchOnly {
		return worker.Observe
	}
	return worker.Armed
}

// begin is [wrap.Wrapped].Inside. Without a worker the command runs all the same.
func (i *inside) begin(c wrap.Command) (wrap.Command, func(wrap.Outcome) wrap.Outcome) {
	life, err := worker.Begin(worker.Options{Mode: i.mode, Books: i.books, Version: readBuild().Version, Standby: i.ready})
	if err != nil {
		return c, func(o wrap.Outcome) wrap.Outcome { return i.ended(c, o, worker.Ended{Failed: err.Error()}) }
	}
	i.life.Store(life)
	within := c
	within.Env = life.Env(c.Env)
	return within, func(o wrap.Outcome) wrap.Outcome {
		i.life.Store(nil)
		seen, err := life.End()
		if err != nil {
			i.u.warn("the worker's folder is left behind: %v", err)
		}
		return i.ended(c, o, seen)
	}
}

// runsOut is [wrap.Wrapped].RunsOut.
func (i *inside) runsOut() (out wrap.RunsOut) {
	if life := i.life.Load(); life != nil {
		out.At, out.Why = life.RunsOut()
	}
	return out
}

// ended completes why a life ended with what was seen of it from inside, or notes why
// nothing was.
func (i *inside) ended(c wrap.Command, o wrap.Outcome, seen worker.Ended) wrap.Outcome {
	switch {
	case seen.OOM != nil:
		return o.FromInside(memory.Evidence{Failure: *seen.OOM, Boundary: seen.Boundary, Every: seen.Every}, seen.Where)
	case seen.Attached || !o.Kind.Memory() && o.Kind != wrap.Failed:
		return o
	}
	why := errors.New("not attached: " + unattached(c, seen))
	i.books.Note(runs.Entry{Kind: runs.KindWorker, Text: why.Error()})
	if o.Kind.Memory() {
		i.u.say("the worker was %v", why)
	}
	return o
}

// unattached is why no process said hello.
func unattached(c wrap.Command, seen worker.Ended) string {
	switch {
	case seen.Failed != "":
		return seen.Failed
	case seen.Torch:
		return "torch was imported, and no step of an optimizer was made"
	case c.Isolated() != "":
		return fmt.Sprintf("python %s leaves out what the worker needs, PYTHONPATH and the module site", c.Isolated())
	case seen.Python:
		return "torch was never imported"
	}
	return "no Python looked into PYTHONPATH: the command starts none, or replaces its environment"
}
