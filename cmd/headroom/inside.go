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

// books guard a session while a life lasts, when both the worker and the code that follows
// the start write to it.
type books struct {
	mu sync.Mutex
	*harness.Session
}

// Note is [harness.Session.Note], under the lock.
func (b *books) Note(e runs.Entry) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.Session.Note(e)
}

// Survived is [harness.Session.Survived], under the lock.
func (b *books) Survived(e runs.Entry) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.Session.Survived(e)
}

// Stepped is [harness.Session.Stepped], under the lock.
func (b *books) Stepped(s runs.ProcessStep) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.Session.Stepped(s)
}

// KeepPieces is [harness.Session.KeepPieces], under the lock.
func (b *books) KeepPieces(rows int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.Session.KeepPieces(rows)
}

// firstBeat is how old a life is when it is first recorded as still running, so that a short
// life costs nothing. beatEvery is the interval after that.
const firstBeat, beatEvery = time.Second, 15 * time.Second

// beat records again and again that a life is still running, until stop is called.
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
	allow []string
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
	life, err := worker.Begin(worker.Options{Mode: i.mode, Books: i.books, Version: readBuild().Version, Standby: i.ready, Allow: i.allow})
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

// ended adds to the outcome of a life what was seen from inside, or records why nothing was
// seen.
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

// unattached is why no process of the command reported to headroom.
func unattached(c wrap.Command, seen worker.Ended) string {
	switch {
	case seen.Failed != "":
		return seen.Failed
	case seen.Torch:
		return "torch was imported, but no optimizer took a step"
	case c.Isolated() != "":
		return fmt.Sprintf("python %s ignores PYTHONPATH or skips the site module, and the worker needs both", c.Isolated())
	case seen.Python:
		return "torch was never imported"
	}
	return "no Python process read PYTHONPATH: the command starts none, or replaces the environment"
}
