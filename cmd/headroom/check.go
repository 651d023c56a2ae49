package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"headroom/cmd/headroom/ui"
	"headroom/harness"
	"headroom/runs"
	"headroom/worker"
	"headroom/wrap/child"
	"headroom/wrap/command"
)

// lastWords is how long a command that has been checked may take to end once headroom has asked
// it to stop. After that, it is killed.
const lastWords = 10 * time.Second

func checkCommand(u *ui.UI) *cli.Command {
	command := &cli.Command{
		Name:      "check",
		Usage:     "test what would happen if a command ran out of memory in PyTorch",
		ArgsUsage: "-- COMMAND | FILE",
		Description: `headroom check -- COMMAND starts a PyTorch training command and stops it before
its optimizer takes a step. The gradients of its first batch are computed both
as a whole and in pieces, and compared; where pieces would be wrong, headroom
says why, and what it would do instead. FILE is one written by headroom init.

The command runs unchanged until that point, and files written by then are kept.
Its output goes to stderr. The status is 0 if every backward pass of the step
can be run in pieces, and 1 if not.`,
		Flags:  []cli.Flag{jsonFlag("print one JSON object")},
		Action: func(c *cli.Context) error { return checkAction(u, c) },
	}
	command.BashComplete = completeFlags(command)
	return command
}

// checked is the answer of headroom check.
type checked struct {
	Command []string         `json:"command"`
	Found   []worker.Checked `json:"found"`
	Why     string           `json:"why,omitempty"` // why nothing was found
}

func checkAction(u *ui.UI, c *cli.Context) error {
	r, err := neededCommand(c)
	if err != nil {
		return err
	}
	line := command.Line{Args: r.Args, Env: os.Environ(), Dir: r.Dir}
	answer := checked{Command: line.Masked()}
	answer.Found, answer.Why, err = looked(c.Context, u, line)
	if err != nil {
		return err
	}
	if c.Bool("json") {
		err = u.AnswerJSON(answer)
	} else {
		err = u.Answer(answer.String())
	}
	if err == nil && !answer.safe() {
		err = &ui.ChildError{Code: 1, Err: errors.New("not every backward pass can be run in pieces"), Quiet: true}
	}
	return err
}

// looked runs a command until its first step has been checked. It returns what was found about
// that step, or why nothing was found.
func looked(ctx context.Context, u *ui.UI, line command.Line) (found []worker.Checked, why string, err error) {
	life, err := worker.Begin(worker.Options{Mode: worker.Check, Books: nobody{}, Version: readBuild().Version})
	if err != nil {
		return nil, "", err
	}
	within := line
	within.Env = append(life.Env(line.Env), "HEADROOM_TRIAL=1")
	exit, err := begunAndEnded(ctx, u, within, life.Checked())
	seen, ended := life.End()
	if ended != nil {
		u.Warn("the worker's folder is left behind: %v", ended)
	}
	select {
	case <-life.Checked():
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
// It returns how the command ended. The command's output goes to stderr.
func begunAndEnded(ctx context.Context, u *ui.UI, line command.Line, enough <-chan struct{}) (exit command.Exit, err error) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		return exit, err
	}
	defer func() { err = errors.Join(err, null.Close()) }()
	child, err := child.Start(line, child.Options{Stdin: null, Stdout: os.Stderr, Stderr: os.Stderr, Bare: true, Patience: lastWords,
		Trouble: func(err error) { u.Warn("%v", err) }})
	if start := (*command.StartError)(nil); errors.As(err, &start) {
		return exit, &ui.UsageError{Err: err, Hint: meant(line, start.Err)}
	}
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

// nobody is a [worker.Books] that records nothing, because check keeps no run.
type nobody struct{}

func (nobody) Note(runs.Entry)          {}
func (nobody) Survived(runs.Entry)      {}
func (nobody) Stepped(runs.ProcessStep) {}
func (nobody) Pieces() int              { return 0 }
func (nobody) KeepPieces(int)           {}

// safe reports whether every backward pass of the step can be run in pieces.
func (a checked) safe() bool {
	for _, f := range a.Found {
		if f.Why != "" {
			return false
		}
	}
	return len(a.Found) > 0
}

func (a checked) String() string {
	if len(a.Found) == 0 {
		return fmt.Sprintf("Nothing could be checked: %s.", cmp.Or(a.Why, "the optimizer took its step before backward was called on the loss of a module that it trains"))
	}
	var b strings.Builder
	said := map[string]bool{}
	for _, f := range a.Found {
		text := sentences(f)
		if !said[text] {
			b.WriteString(text)
		}
		said[text] = true
	}
	if !a.safe() {
		b.WriteString("Where pieces would be wrong, the whole batch is run once more; on a GPU, autograd's saved tensors are kept in host memory\n" +
			"if necessary. If that fails too, the command gets the exception.\n")
	}
	b.WriteString("The optimizer took no step.")
	return b.String()
}

// sentences describes f in a line for people to read.
func sentences(f worker.Checked) string {
	where := cmp.Or(f.Where, "somewhere")
	if here, err := os.Getwd(); err == nil {
		where = strings.TrimPrefix(where, here+string(os.PathSeparator))
	}
	switch {
	case f.How != "":
		return fmt.Sprintf("%s: ran out of memory, and survived: %s.\n", where, f.How)
	case f.Modules == "":
		return fmt.Sprintf("%s: ran out of memory, and could not recover: %s.\n", where, f.Why)
	case f.Why != "":
		return fmt.Sprintf("%s: backward of %s cannot be run in pieces: %s.\n", where, f.Modules, f.Why)
	}
	return fmt.Sprintf("%s: backward of %d rows of %s can be run in pieces: the gradients of %d pieces match those of the whole batch to within %.1g.\n", where, f.Rows, f.Modules, f.Pieces, f.Error)
}
