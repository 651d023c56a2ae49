package job

import (
	"context"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"

	"headroom/harness"
	"headroom/recovery"
	"headroom/runs"
	"headroom/worker"
	"headroom/wrap"
	"headroom/wrap/nodes"
)

// Command is a run of a wrapped command. The caller sets the fields, opens the run's folder, and
// closes it after Run. Only one goroutine may use it, except where a method says otherwise.
type Command struct {
	*wrap.Wrapped
	Policy recovery.Policy // what may be done if memory runs out
	Worker *worker.Options // without a Journal, which Run adds; nil keeps the worker out of the command's processes
	// Snapshot is whether PyTorch's snapshot of a GPU's memory is written into the run's folder when
	// memory first runs out.
	Snapshot bool
	Version  string // of headroom, for the journal
	// Found is what a trial before this run has found; nil if there was none.
	Found *runs.Found
}

// Run starts the command, and starts it again for as long as headroom has a remedy for its
// failures. The int is the exit status of the newest attempt, with which headroom is to exit. The
// error is as for [wrap.Wrapped.Run], or a *[checkpoints.KeptElsewhereError].
func (c *Command) Run(ctx context.Context) (_ harness.Result, _ int, err error) {
	begun := false
	defer func() {
		if !begun && c.Nodes != nil {
			c.Nodes.Leave(nodes.Over{Code: 1, Why: err.Error()})
		}
	}()
	ctx, stop := untilEnded(ctx, c.Nodes != nil)
	defer stop()
	if c.Nodes == nil || c.Nodes.Node() == 0 { // the nodes of one run keep their checkpoints in one place
		release, err := c.Claim()
		if err != nil {
			return harness.Result{}, 0, err
		}
		defer release()
	}
	plan := c.Asked
	if c.Match == nil {
		plan = recovery.Plan{Effective: 1, World: 1, Micro: 1}
	}
	o := harness.SessionOptions{Plan: plan, Policy: c.Policy, Version: c.Version, Found: c.Found, OnEntry: c.Reporter.Entry}
	if _, secrets := runs.Masked(c.Line.Args); len(secrets) > 0 {
		o.Scrub = runs.Scrub(secrets)
	}
	session, err := harness.Begin(c.Folder, o)
	if err != nil {
		return harness.Result{}, 1, err
	}
	if c.Worker != nil {
		i := &inside{Options: *c.Worker, to: c.Reporter, found: c.Found}
		i.Journal, i.Look, i.Joined = session, look, joined(c.Line, c.Worker.Version)
		if c.Snapshot {
			if i.Snapshot, err = filepath.Abs(filepath.Join(c.Folder.Dir(), "snapshot.pickle")); err != nil {
				return harness.Result{}, 1, err
			}
		}
		c.Inside = i
	}
	begun = true
	return c.Wrapped.Run(ctx, session)
}

// untilEnded returns a context that ends when headroom is asked to end. Such signals are meant for
// the command. Each is passed on to it, and none ends headroom before the command has ended. After
// a signal, the command is not started again.
//
// On several nodes that is also so after SIGUSR1, with which Slurm announces the end of a job's time: a
// command that saves then, and ends with 0, is not done.
func untilEnded(ctx context.Context, nodes bool) (context.Context, context.CancelFunc) {
	ends := []os.Signal{os.Interrupt, syscall.SIGTERM, syscall.SIGHUP}
	if nodes {
		ends = append(ends, syscall.SIGUSR1)
	}
	ends = slices.DeleteFunc(ends, signal.Ignored)
	if len(ends) == 0 { // to NotifyContext that would mean all signals
		return ctx, func() {}
	}
	return signal.NotifyContext(ctx, ends...)
}
