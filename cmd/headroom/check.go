package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/urfave/cli/v2"

	"headroom/cmd/headroom/ui"
	"headroom/job"
	"headroom/worker"
	"headroom/wrap/command"
)

func checkCommand(u *ui.UI) *cli.Command {
	command := &cli.Command{
		Name:      "check",
		Usage:     "test what would happen if a command ran out of memory in PyTorch",
		ArgsUsage: "-- COMMAND | FILE",
		Description: `headroom check -- COMMAND starts a PyTorch training command and stops it before
its optimizer takes a step. The gradients of its first batch are computed both
as a whole and in pieces, and compared; where pieces would be wrong, headroom
says why, and what it would do instead. Before that, the script is read for
lines that take memory without need. FILE is one written by headroom init.

The command runs unchanged until that point, and files written by then are kept.
Its output goes to stderr. The status is 0 if every backward pass of the step
can be run in pieces, and 1 if not.`,
		Flags:  append(readFlags(), jsonFlag("print one JSON object")),
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
	job.Reading
}

func checkAction(u *ui.UI, c *cli.Context) error {
	r, err := neededCommand(c)
	if err != nil {
		return err
	}
	line := command.Line{Args: r.Args, Env: os.Environ(), Dir: r.Dir}
	answer := checked{Command: line.Masked()}
	if answer.Reading, err = readScript(c, line); err != nil {
		return err
	}
	answer.Found, answer.Why, err = job.Check(c.Context, u, line, readBuild().Version)
	if start := (*command.StartError)(nil); errors.As(err, &start) {
		return &ui.UsageError{Err: err, Hint: meant(line, start.Err)}
	}
	if err != nil {
		return err
	}
	if c.Bool("json") {
		err = u.AnswerJSON(answer)
	} else {
		err = u.Answer(ui.PrintableLines(answer.String()))
	}
	if err == nil && !answer.safe() {
		err = &ui.ChildError{Code: 1, Err: errors.New("not every backward pass can be run in pieces"), Quiet: true}
	}
	return err
}

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
	var b strings.Builder
	findings(&b, a.Findings, nil, "")
	if len(a.Found) == 0 {
		fmt.Fprintf(&b, "Nothing could be checked: %s.", cmp.Or(a.Why, "the optimizer took its step before backward was called on the loss of a module that it trains"))
		return b.String()
	}
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
			"if necessary, and then whatever does not fit (--spill). If that fails too, the command gets the exception.\n")
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
