package job

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"headroom/harness"
	"headroom/memory"
	"headroom/runs"
	"headroom/worker"
	"headroom/wrap"
	"headroom/wrap/child"
	"headroom/wrap/command"
)

// lastWords is how long a command that has been checked may take to end once headroom has asked
// it to stop. After that, it is killed.
const lastWords = 10 * time.Second

// Check runs a command until the worker has checked its first step. It returns what was found about
// that step, or why nothing was found. version is headroom's. The error is a *[command.StartError]
// if the command cannot be started.
func Check(ctx context.Context, to wrap.Reporter, line command.Line, version string) (found []worker.Checked, why string, err error) {
	// A step that needed the host's memory must not count as one that fits.
	attempt, err := worker.Begin(worker.Options{Mode: worker.Check, Journal: nobody{}, Version: version, Spill: new(memory.Bytes)})
	if err != nil {
		return nil, "", err
	}
	within := line
	within.Env = append(attempt.Env(line.Env), "HEADROOM_TRIAL=1")
	exit, err := begunAndEnded(ctx, to, within, os.Stderr, attempt.Checked())
	seen, ended := attempt.End()
	if ended != nil {
		to.Warn("the worker's folder is left behind: %v", ended)
	}
	select {
	case <-attempt.Checked():
		return seen.Checked, seen.Unchecked, err
	default:
	}
	switch {
	case err != nil:
		return nil, "", err
	case exit.Stopped:
		return nil, "", harness.ErrInterrupted
	case seen.OOM != nil && seen.Why != "":
		return nil, "memory ran out in the first step, which cannot be run in pieces: " + seen.Why, nil
	case seen.Attached:
		return nil, fmt.Sprintf("the command exited with status %d before its optimizer took a step", exit.Code), nil
	}
	return nil, fmt.Sprintf("the command exited with status %d, and the worker was not attached: %s", exit.Code, unattached(line, seen)), nil
}

// begunAndEnded starts a command, and asks it to stop when enough is closed or ctx is cancelled.
// It returns how the command ended. What the command prints goes to out.
func begunAndEnded(ctx context.Context, to wrap.Reporter, line command.Line, out *os.File, enough <-chan struct{}) (exit command.Exit, err error) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		return exit, err
	}
	defer func() { err = errors.Join(err, null.Close()) }()
	child, err := child.Start(line, child.Options{Stdin: null, Stdout: out, Stderr: out, Bare: true, Patience: lastWords,
		Trouble: func(err error) { to.Warn("%v", err) }})
	if err != nil {
		return exit, err
	}
	select {
	case <-enough:
		child.Stop()
	case <-ctx.Done():
		child.Stop()
	case <-child.Done():
	}
	return child.Wait(), ctx.Err()
}

// nobody is the journal of a check, which keeps no run.
type nobody struct{ harness.Journal }

func (nobody) Note(runs.Entry)          {}
func (nobody) Survived(runs.Entry)      {}
func (nobody) Stepped(runs.ProcessStep) {}
func (nobody) Pieces() int              { return 0 }
func (nobody) KeepPieces(int)           {}
