package main

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/urfave/cli/v2"

	"headroom/cmd/headroom/ui"
	"headroom/job"
	"headroom/machine"
	"headroom/memory"
	"headroom/worker"
	"headroom/wrap"
	"headroom/wrap/command"
	"headroom/wrap/rewrite"
)

func explainCommand(u *ui.UI) *cli.Command {
	command := &cli.Command{
		Name:      "explain",
		Usage:     "explain a command, or what a run's memory is held for",
		ArgsUsage: "-- COMMAND | FILE | RUN",
		Description: `headroom explain [FLAGS] -- COMMAND shows what the command was recognised as and
why, where its batch is set, what a smaller micro-batch would change, where its
checkpoints are looked for, and what could go wrong. FILE is one written by
headroom init. The Python script is read for lines that take memory without
need. Nothing of COMMAND is started, and nothing is changed.

headroom explain RUN shows what a run's memory is held for: now, if the run is
in progress, or else when it last ran out or began to grow.`,
		Flags:  slices.Concat(knownFlags(), readFlags(), []cli.Flag{jsonFlag("print one JSON object")}),
		Action: func(c *cli.Context) error { return explainAction(u, c) },
	}
	command.BashComplete = completeFlags(command, runNames)
	return command
}

func explainAction(u *ui.UI, c *cli.Context) error {
	if aboutRun(c) {
		return explainRun(u, c)
	}
	r, err := neededCommand(c)
	if err != nil {
		return err
	}
	w, err := recognised(r)
	if err != nil {
		return err
	}
	e := explained(w, u.Now())
	reading, err := readScript(c, w.Line)
	if err != nil {
		return err
	}
	seen := lastGrown(w.Line)
	if c.Bool("json") {
		return u.AnswerJSON(struct {
			wrap.Explanation
			job.Reading
			Grown *grown `json:"grown,omitempty"`
		}{e.Explanation, reading, seen})
	}
	return u.Answer(e.full(reading.Findings, seen, w.Line.Dir))
}

// explanation puts a [wrap.Explanation] into words for people.
type explanation struct {
	wrap.Explanation
	spill *memory.Bytes // as for [configs.Command]
}

// explained returns all that is known about w before it runs.
func explained(w *wrapped, now time.Time) explanation {
	e := w.Explain(wrap.Look{Files: os.DirFS("/"), Now: now, Free: machine.DiskFree})
	e.InPlace = w.Worker != nil && w.Worker.Mode == worker.Armed && e.Launch.Ranks <= 1 // several ranks are only watched
	return explanation{e, w.request.Spill}
}

// full returns the whole explanation as text, with what was found in the script, which runs in dir, and in a run of it.
func (e explanation) full(found []worker.Finding, seen *grown, dir string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "command: %v\n", command.Line{Args: e.Command})
	e.runs(&b)
	if e.Launch.Program != "" {
		fmt.Fprintf(&b, "program: %s\n", e.launched())
	}
	e.recognised(&b, true)
	if len(e.Scores) > 0 {
		table(&b, func(w *tabwriter.Writer) {
			for _, s := range e.Scores {
				if s.Points > 0 || len(s.Reasons) > 0 {
					fmt.Fprintf(w, "  %s\t%d\t%s\n", s.Profile, s.Points, strings.Join(s.Reasons, ", "))
				}
			}
		})
	}
	e.planned(&b)
	if len(e.Knobs) > 0 {
		b.WriteString("knobs:\n")
		table(&b, func(w *tabwriter.Writer) {
			for _, k := range e.Knobs {
				fmt.Fprintf(w, "  %s\t%s\t%s\n", k.Name, k.Value, placeOf(k))
			}
		})
	}
	e.smaller(&b)
	e.saved(&b)
	e.tonight(&b, "  ", true)
	findings(&b, found, seen, dir)
	return strings.TrimRight(ui.PrintableLines(b.String()), "\n")
}

// brief returns the part of the explanation that a user who is about to start the command needs.
func (e explanation) brief() string {
	var b strings.Builder
	e.runs(&b)
	e.recognised(&b, false)
	e.planned(&b)
	e.tonight(&b, "warning: ", false)
	e.smaller(&b)
	return strings.TrimRight(ui.PrintableLines(b.String()), "\n")
}

// runs writes why the command cannot run, if something of it does not exist.
func (e explanation) runs(b *strings.Builder) {
	if e.Missing != "" {
		fmt.Fprintf(b, "this command cannot run: %s\n", e.Missing)
	}
}

func table(b *strings.Builder, rows func(*tabwriter.Writer)) {
	w := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	rows(w)
	_ = w.Flush() // a write into memory does not fail
}

func (e explanation) launched() string {
	text := e.Launch.Program
	if len(e.Launch.By) > 0 {
		text += ", started by " + strings.Join(e.Launch.By, ", ")
	}
	if len(e.Launch.Layers) > 0 {
		text += ", with " + strings.Join(e.Launch.Layers, ", ")
	}
	switch {
	case e.Launch.Ranks > 1:
		text += ", on " + ui.Plural(e.Launch.Ranks, "rank")
	case e.Launch.Ranks == 0 && e.Launch.Why != "":
		text += "; the number of ranks is not known: " + e.Launch.Why
	}
	return text
}

// recognised writes which profile applies, or why none does. If full is true, it adds the file of
// the profile. It also writes whether a step that runs out of memory can be run again in place,
// which does not depend on a profile.
func (e explanation) recognised(b *strings.Builder, full bool) {
	if e.InPlace && (full || e.Why != "") {
		b.WriteString("in place: a PyTorch step that runs out of memory is run again in pieces, without a change to the command; to try that: headroom check -- COMMAND\n")
	}
	if e.InPlace && full {
		fmt.Fprintf(b, "spill: %s\n", e.spills())
	}
	if e.Why != "" {
		fmt.Fprintf(b, "the command would be run as it is, and never changed: %s\n", e.Why)
	}
	if e.Profile == "" {
		hint := "micro=FLAG --knob accumulation=FLAG"
		if len(e.Suggest) > 0 {
			hint = strings.Join(e.Suggest, " --knob ") + ", if these guesses are right"
		}
		fmt.Fprintf(b, "to have it recognised: --profile NAME, or --knob %s\n", hint)
		return
	}
	source := ""
	if e.File != "" && full {
		source = " (" + e.File + ")"
	}
	fmt.Fprintf(b, "profile: %s%s\n", e.Profile, source)
}

// spills says how much of the host's memory may be used for what does not fit on a GPU.
func (e explanation) spills() string {
	switch {
	case e.spill == nil:
		return "what does not fit on a GPU may use half of the memory that the host has free (--spill SIZE|off)"
	case *e.spill == 0:
		return "off: what does not fit on a GPU uses no memory of the host"
	}
	return fmt.Sprintf("what does not fit on a GPU may use %v of the host's memory", *e.spill)
}

func (e explanation) planned(b *strings.Builder) {
	if e.Plan == nil {
		return
	}
	fmt.Fprintf(b, "plan: %v\n", *e.Plan)
	for _, unknown := range e.Unknown {
		fmt.Fprintf(b, "not known: %s\n", unknown)
	}
}

// smaller writes what would be changed if memory ran out.
func (e explanation) smaller(b *strings.Builder) {
	switch s := e.Smaller; {
	case e.Plan == nil:
	case s == nil:
		b.WriteString("if memory runs out: the micro-batch cannot be made any smaller\n")
	case s.Refused != "":
		fmt.Fprintf(b, "if memory runs out: nothing can be made smaller: %s\n", s.Refused)
	default:
		fmt.Fprintf(b, "if memory runs out: %v\n%s", s.Plan, s.Diff)
		if len(s.Prove) > 0 && s.Trusted {
			fmt.Fprintf(b, "assumed because of --trust: %s\n", strings.Join(s.Prove, ", and "))
		} else if len(s.Prove) > 0 {
			fmt.Fprintf(b, "but this will not be done yet: %v\n", &wrap.UnprovenError{Prove: s.Prove})
		}
	}
}

// saved writes where the checkpoints are, and how the command would continue from one.
func (e explanation) saved(b *strings.Builder) {
	s := e.Saved
	if s == nil {
		return
	}
	if s.Where == "" {
		fmt.Fprintf(b, "checkpoints: %s\n", s.Refused)
		return
	}
	fmt.Fprintf(b, "checkpoints: %s\n", s.Where)
	table(b, func(w *tabwriter.Writer) {
		for _, c := range s.All {
			state := "complete"
			if c.Problem != "" {
				state = c.Problem
			}
			fmt.Fprintf(w, "  %s\t%s\t%v\t%s\n", c.Path, c.Time.Format(time.DateTime), c.Size, state)
		}
	})
	if len(s.All) == 0 {
		b.WriteString("  none there yet\n")
	} else {
		b.WriteString("  a run continues only from checkpoints that it has saved itself\n")
	}
	switch s.Mode {
	case "auto":
		b.WriteString("  the command continues from the newest by itself\n")
	case "path":
		fmt.Fprintf(b, "  continues with %s\n", strings.Join(s.Set, ", "))
	default:
		b.WriteString("  no way to continue from a checkpoint is known\n")
	}
	if s.Refused != "" {
		fmt.Fprintf(b, "  cannot continue from %s: %s\n", s.Newest.Path, s.Refused)
	} else if s.Diff != "" {
		fmt.Fprintf(b, "  from %s:\n%s", s.Newest.Path, s.Diff)
	}
}

// tonight writes what could go wrong, in lines that begin with prefix. If advice is true, it also
// writes a heading, and warnings that are only advice.
func (e explanation) tonight(b *strings.Builder, prefix string, advice bool) {
	if advice {
		b.WriteString("what could go wrong tonight:\n")
	}
	for _, w := range e.Warnings {
		switch {
		case !w.Advice && !advice:
			fmt.Fprintf(b, "%s%s\n", prefix, w.Text)
		case !w.Advice:
			fmt.Fprintf(b, "%s%s: %s\n", prefix, w.About, w.Text)
		case advice:
			fmt.Fprintf(b, "%s%s (advice): %s\n", prefix, w.About, w.Text)
		}
	}
	if advice && len(e.Warnings) == 0 {
		fmt.Fprintf(b, "%snothing that can be seen from here\n", prefix)
	}
}

// placeOf says where a knob of the command is set.
func placeOf(k rewrite.KnobAt) string {
	if k.Kind == "absent" {
		return "not given: " + k.Where
	}
	return k.Where
}
