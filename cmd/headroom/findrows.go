package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"headroom/cmd/headroom/ui"
	"headroom/job"
	"headroom/memory"
	number "headroom/report/words"
	"headroom/worker"
	"headroom/wrap/command"
	"headroom/wrap/rewrite"
)

// triedInside reports whether find first looks for the largest number of rows in one process of the command: of
// a Python program, unless the user has asked for one start for each size, or has named what only that needs.
func triedInside(c *cli.Context, r request, w *wrapped) bool {
	if len(r.Knobs) > 0 || r.Profile != "" || slices.ContainsFunc([]string{"starts", "flat-for", "writes-nothing", "world"}, func(name string) bool { return isSet(c, name) }) {
		return false
	}
	launch, err := command.Peel(w.Line)
	if err != nil {
		return false
	}
	python, err := w.Line.Python()
	return err == nil && (w.Match == nil || w.Asked.World == max(1, launch.Ranks)) && mayTrain(w.Line, python.Words)
}

// foundRows is what find answers for a command whose step it has tried in the command's process.
type foundRows struct {
	Profile string `json:"profile,omitempty"`
	job.FoundRows
	Asked   []string `json:"asked"`             // the command
	Command []string `json:"command,omitempty"` // the command with the recommended plan, if it is recognised
	Diff    string   `json:"diff,omitempty"`    // from the command to Command
	Prove   []string `json:"prove,omitempty"`   // what must hold for Command to train the same, but is not known to hold

	table bool // several memories were asked for
}

// findRows looks for the largest number of rows in one process of the command, and prints the answer. done is false
// if that is not possible, but the command can be tried in another way.
func findRows(u *ui.UI, c *cli.Context, w *wrapped, within []memory.Card) (done bool, err error) {
	if err := w.Line.Startable(); err != nil {
		return true, notStarted(w.Line, err)
	}
	ctx, stop := interruptible(c, u)
	defer stop()
	line, remove, err := rehearsed(w)
	defer func() { err = errors.Join(err, remove()) }()
	if err != nil {
		return true, err
	}
	u.LooksInside()
	found, why, exit, err := job.FindRows(ctx, u, line, job.FindRowsOptions{Headroom: trialHeadroom, Look: c.Int("look"), Evaluation: c.Bool("evaluation"), Version: readBuild().Version, Within: within,
		OnTried: func(t worker.Trial) { u.TriedRows(t.Rows, t.Within, t.Fits, t.Peak, t.Seconds) }})
	switch {
	case errors.As(err, new(*command.StartError)):
		return true, notStarted(w.Line, err)
	case errors.Is(err, job.ErrOnHost):
		return true, &ui.ChildError{Code: 1, Err: fmt.Errorf("--for: %w", err), Hint: "give sizes instead, such as --for 8GiB,16GiB, to ask about the memory of a machine"}
	case err != nil:
		return true, err
	case found == nil && w.Match != nil && exit.Code == 0 && onlyInside(c) == "" && rewrite.Triable(w.Match, false, false) == nil:
		u.Say("the step cannot be tried on other numbers of rows: %s", why)
		return false, nil
	case found == nil:
		err := fmt.Errorf("the step cannot be tried on other numbers of rows: %s", why)
		return true, &ui.ChildError{Code: max(1, exit.Code), Err: err, Hint: "name what sets the size, with --knob micro=FLAG, to start the command once for each size"}
	}
	f := foundRows{FoundRows: *found, Asked: w.Line.Masked(), table: isSet(c, "for")}
	f.rewritten(w)
	if c.Bool("json") {
		return true, u.AnswerJSON(f)
	}
	return true, u.Answer(f.String())
}

// interruptible returns a context that is cancelled when the user asks find to stop.
func interruptible(c *cli.Context, u *ui.UI) (context.Context, func()) {
	_, interrupt, done := stopping(c.Context, func(_ os.Signal, again bool) { u.FindStops(again) })
	ctx, cancel := context.WithCancel(c.Context)
	go func() {
		select {
		case <-interrupt:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(); done() }
}

// rehearsed returns the command as it is to be started: if its framework is known, it writes into a temporary folder.
// remove removes what was written for it.
func rehearsed(w *wrapped) (line command.Line, remove func() error, err error) {
	nothing := func() error { return nil }
	if w.Match == nil {
		return w.Line, nothing, nil
	}
	folder, err := os.MkdirTemp("", "headroom-trial-")
	if err != nil {
		return line, nothing, fmt.Errorf("create a folder for a trial: %w", err)
	}
	next, err := rewrite.Rehearse(w.Match, w.Asked, folder)
	if err != nil { // its output cannot be redirected, or its steps cannot be limited: the first step is all that it makes
		return w.Line, func() error { return os.RemoveAll(folder) }, nil
	}
	remove = func() error { return errors.Join(next.Remove(), os.RemoveAll(folder)) }
	return next.Command, remove, next.Write()
}

// rewritten fills in the fields of f that describe the command with the recommended plan, if its framework is known
// and it can be changed to exactly that plan.
func (f *foundRows) rewritten(w *wrapped) {
	if w.Match == nil || w.Asked.Effective%(f.Recommended.Micro*f.Recommended.World) != 0 {
		return
	}
	next, err := rewrite.To(w.Match, w.Asked.WithMicro(f.Recommended.Micro), rewrite.Resume{})
	if err != nil {
		return
	}
	f.Profile = w.Match.Profile.Name
	f.Command, f.Diff = next.Command.Masked(), next.Diff(w.Line)
	if !w.Trust {
		f.Prove = next.Prove
	}
}

func (f foundRows) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s.\n", f.Reason)
	fmt.Fprintf(&b, "%8s  %10s  %12s\n", "rows", "peak", "rows/s")
	tried := slices.Clone(f.Tried)
	slices.SortFunc(tried, func(x, y worker.Trial) int { return x.Rows - y.Rows })
	for _, t := range tried {
		if !t.Fits {
			fmt.Fprintf(&b, "%8d  %10s\n", t.Rows, "no room")
			continue
		}
		fmt.Fprintf(&b, "%8d  %10v  %12s\n", t.Rows, t.Peak, number.Number(float64(t.Rows)/t.Seconds))
	}
	if f.Line.PerSample > 0 {
		fmt.Fprintf(&b, "Of %v, %v do not depend on the rows (weights %v, gradients %v, optimizer %v), and each row takes %v.\n",
			f.Available, memory.Bytes(f.Line.Base), f.Weights, f.Gradients, f.States, memory.Bytes(f.Line.PerSample))
	}
	if e := f.Evaluation; e != nil && e.More {
		fmt.Fprintf(&b, "Evaluation, without gradients: at least %s fit (%v).\n", number.Plural(e.Largest, "row"), e.Peak)
	} else if e != nil {
		fmt.Fprintf(&b, "Evaluation, without gradients: %s fit (%v).\n", number.Plural(e.Largest, "row"), e.Peak)
	}
	f.writeLevers(&b)
	f.writeBatches(&b)
	f.writeElsewhere(&b)
	switch {
	case f.Diff != "":
		fmt.Fprintf(&b, "To train with %v:\n%s", f.Recommended, f.Diff)
	case f.Recommended.Accumulation() > 1 && f.Uncut == "":
		fmt.Fprintf(&b, "Without a change to the script, headroom run trains its %s in pieces that fit.\n", ui.Plural(f.Rows, "row"))
	}
	if f.Recommended.Accumulation() > 1 && f.Recommended.Micro != f.Rows && f.Uncut != "" {
		fmt.Fprintf(&b, "Smaller micro-batches are not known to add up to the same step: %s. They may train differently.\n", f.Uncut)
	}
	b.WriteString("The command was ended before its second step.")
	return b.String()
}

// writeLevers writes what would make room for more rows.
func (f foundRows) writeLevers(b *strings.Builder) {
	if len(f.Levers) > 0 {
		b.WriteString("More rows, estimated from what was measured:\n")
	}
	for _, l := range f.Levers {
		fmt.Fprintf(b, "  about %s: %s (%v %s)\n", number.Count(l.Rows), l.What, l.Frees, l.Of)
	}
}

// writeBatches writes which rows the answer holds for, if it was asked for the largest of several batches, or the batches that were
// read differ.
func (f foundRows) writeBatches(b *strings.Builder) {
	seen, looked := f.Batches, fmt.Sprintf("Looked at %s of the loader", batches(f.Batches.Read))
	switch {
	case seen.Look > 0 && seen.Read == 0:
		b.WriteString("No batch of a DataLoader was looked at: the script reads none before its first step. The rows are those of the first step.\n")
	case seen.Look > 0 && !seen.Tensors:
		b.WriteString(looked + ": they have no tensors, so that none is known to be the largest. The rows are those of the first step.\n")
	case seen.Look > 0 && len(seen.Lengths) == 0 && !seen.Differ:
		b.WriteString(looked + ": all rows have the same shape.\n")
	case seen.Look > 0:
		b.WriteString(looked + ": the rows are those of the largest.\n")
	case len(seen.Lengths) > 0:
		b.WriteString("The rows are those of the first step, and later ones may be larger. --look 200 tries the largest of 200 batches.\n")
	}
	for _, l := range seen.Lengths {
		b.WriteString("  " + f.length(l) + "\n")
	}
	if seen.Look > 0 && seen.Differ {
		b.WriteString("  Batches differ in which tensors they have.\n")
	}
}

// length says how large a dimension was in several batches, and in the one that was tried.
func (f foundRows) length(l worker.Length) string {
	text := fmt.Sprintf("%s: %d to %d in dimension %d, %d in the first batch", l.Tensor, l.Least, l.Most, l.Dim, l.First)
	if l.Used > 0 {
		text += fmt.Sprintf("; tried on %d", l.Used)
	}
	if l.Each > 0 {
		text += fmt.Sprintf(", so that %s are %s elements", ui.Plural(f.Largest, "row"), number.Count(int64(f.Largest)*int64(l.Each)))
	}
	return text
}

// batches says how many batches there are.
func batches(n int) string {
	if n == 1 {
		return "1 batch"
	}
	return number.Count(n) + " batches"
}

// writeElsewhere writes what fits into other memories, unless that is the answer itself.
func (f foundRows) writeElsewhere(b *strings.Builder) {
	if len(f.Elsewhere) == 0 || !f.table && f.Elsewhere[0].Available == f.Available {
		return
	}
	estimated, width := false, len("for")
	for _, e := range f.Elsewhere {
		estimated, width = estimated || e.Estimated && e.Why == "", max(width, len(e.Name))
	}
	fmt.Fprintf(b, "%*s  %10s  %8s  %8s\n", width, "for", "memory", "largest", "use")
	for _, e := range f.Elsewhere {
		fmt.Fprintf(b, "%*s  %10v  ", width, e.Name, e.Memory)
		switch {
		case e.Why != "":
			b.WriteString(e.Why + "\n")
		case e.Estimated:
			fmt.Fprintf(b, "%8d  %8d  estimated\n", e.Largest, e.Recommended.Micro)
		default:
			fmt.Fprintf(b, "%8d  %8d\n", e.Largest, e.Recommended.Micro)
		}
	}
	if estimated {
		fmt.Fprintf(b, "Estimated from the line of what was measured here, in %v. What is not estimated was run, within that much memory of this device.\n", f.Available)
	}
}

// imported matches a module that a line of Python imports.
var imported = regexp.MustCompile(`(?m)^[ \t]*(?:from|import)[ \t]+(\w+)`)

// elsewhere are well-known modules that do not import PyTorch.
var elsewhere = []string{"__future__", "argparse", "os", "sys", "re", "math", "time", "json", "random", "pathlib", "logging", "subprocess", "signal", "collections", "itertools", "functools", "typing", "numpy", "pandas"}

// mayTrain reports whether a script may train with PyTorch: it names torch, or imports something that may import it. Any
// other script would be run to its end. A module may.
func mayTrain(line command.Line, program []string) bool {
	if len(program) != 1 {
		return true
	}
	text, err := os.ReadFile("/" + line.Abs(program[0]))
	if err != nil {
		return false
	}
	return strings.Contains(string(text), "torch") || slices.ContainsFunc(imported.FindAllStringSubmatch(string(text), -1), func(m []string) bool { return !slices.Contains(elsewhere, m[1]) })
}
