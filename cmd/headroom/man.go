package main

import (
	"fmt"
	"strings"

	"github.com/urfave/cli/v2"

	"headroom/cmd/headroom/ui"
)

func manCommand(u *ui.UI) *cli.Command {
	return &cli.Command{
		Name:        "man",
		Usage:       "print the manual page",
		Description: "headroom man | man -l -        shows it\nheadroom man > headroom.1      saves it",
		Action: func(c *cli.Context) error {
			if err := noArguments(c); err != nil {
				return err
			}
			return u.Answer(strings.TrimRight(manPage(c.App), "\n"))
		},
	}
}

// manPage returns the manual page, for section 1, in roff's man macros. It is generated
// from the same tables as the help.
func manPage(app *cli.App) string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line(`.TH HEADROOM 1 "" "headroom %s" "User Commands"`, roff(readBuild().Version))
	line(".SH NAME\nheadroom \\- %s", roff(app.Usage))
	line(".SH SYNOPSIS")
	manUsage(line, app.UsageText)
	line(".SH DESCRIPTION\n%s", roffParagraphs(app.Description))
	line(".SH COMMANDS\nEach command is described by its\n.B \\-\\-help\nflag.")
	for _, command := range app.VisibleCommands() {
		line(".SS headroom %s %s\n%s", command.Name, roff(command.ArgsUsage), roff(command.Usage))
		manUsage(line, command.UsageText)
		for _, text := range []string{command.Description, details[command.Name]} {
			if text != "" {
				line(".PP\n%s", roffParagraphs(text))
			}
		}
		manFlags(line, command.VisibleFlags())
	}
	line(".SH EXIT STATUS\n%s", roff(ui.PassedOn))
	for _, e := range ui.Exits {
		line(".TP\n.B %s\n%s", e.Label(), roff(e.Means))
	}
	line(".SH ENVIRONMENT")
	for _, v := range environment {
		line(".TP\n.B %s\n%s", v.name, roff(v.means))
	}
	return b.String()
}

// manUsage prints the ways to call a command, each with what it does.
func manUsage(line func(string, ...any), text string) {
	for l := range strings.Lines(text) {
		call, does, _ := strings.Cut(strings.TrimSpace(l), "\t")
		line(".TP\n.B %s\n%s", roff(call), roff(does))
	}
}

func manFlags(line func(string, ...any), flags []cli.Flag) {
	group := ""
	for _, f := range flags {
		if c, ok := f.(cli.CategorizableFlag); ok && c.GetCategory() != group {
			group = c.GetCategory()
			line(".PP\nFLAGS FOR %s:", roff(group))
		}
		names, value, usage := flagParts(f)
		usage += details[names[0]]
		if value != "" {
			value = ` \fI` + roff(value) + `\fR`
		}
		line(".TP\n.B %s%s\n%s", roff(strings.Join(names, ", ")), value, roff(usage))
	}
}

// roffParagraphs formats text for roff. Prose fills the width of the reader's terminal. A
// paragraph with two spaces in a row is a table, whose lines stay as they are.
func roffParagraphs(text string) string {
	paragraphs := strings.Split(roff(text), "\n\n")
	for i, p := range paragraphs {
		if strings.Contains(p, "  ") {
			paragraphs[i] = ".nf\n" + p + "\n.fi"
		}
	}
	return strings.Join(paragraphs, "\n.PP\n")
}

// roff escapes the characters that have a meaning in roff: backslashes, hyphens (which
// roff would print as dashes that cannot be pasted into a shell), and a full stop or an
// apostrophe at the start of a line.
func roff(text string) string {
	lines := strings.Split(strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(text), "\n")
	for i, l := range lines {
		if strings.HasPrefix(l, ".") || strings.HasPrefix(l, "'") {
			lines[i] = `\&` + l
		}
	}
	return strings.Join(lines, "\n")
}

// details holds the text that the manual adds to the help of a command or a flag.
var details = map[string]string{
	"run": `If a step cannot be run in pieces, the micro-batch is made smaller when COMMAND starts again. A file from "headroom init" can take the place of -- COMMAND. A run of CONFIG is kept in headroom-runs/NAME.

Everything after the first -- belongs to COMMAND. "headroom explain" shows everything that is known about it.

CONFIG is a file, or the name of a preset. The same command line, given again after an interrupt, a crash or a loss of power,
continues the run, or does nothing if the run is finished. If the device is lost, headroom replaces its own process with a new one, which continues from the newest checkpoint.

For a run of CONFIG, the first Ctrl-C (or SIGTERM, SIGHUP) finishes the step, saves and stops; the second one stops at once. COMMAND receives such signals itself.`,
	"--knob":            "; NAME is micro, accumulation or another knob listed in docs/profiles.md, such as checkpoints=PATTERN and unit=step; may be repeated",
	"--trust":           ", such as that it divides the loss by the accumulation",
	"--hang":            "; a sign of life is output, GPU work or a new checkpoint",
	"--observe":         "; a step that runs out of memory is left to COMMAND",
	"--restart-leaking": ": just after it has saved one, if it would run out of memory before the next",
	"--spill":           ", for each process that trains with PyTorch 2.8 or later; half of what the host has free if not given",
	"--snapshot":        ", of a GPU's memory, into snapshot.pickle in the run's folder, for pytorch.org/memory_viz; it has the lines that allocated what COMMAND has recorded of them",
	"--allow":           ", although training is then not bit-for-bit the same; may be repeated",
	"--trackers":        "; wandb if not given, and wandb,mlflow is both",
	"--notify":          " as in ntfy://TOPIC, or @FILE with one in each line; off tells nobody; may be repeated. docs/notifications.md has what is sent, and when",
	"--metrics":         "; they are at http://ADDRESS/metrics",
	"--flat-for":        "; TIME must be longer than an optimizer step, and is a minute if not given",
	"--memory":          "; needs PyTorch 2.10 or later",
}

// environment lists the variables that headroom reads.
var environment = []struct{ name, means string }{
	{"NO_COLOR", "if set and not empty, nothing is coloured"},
	{"TERM", "if set to dumb, output is plain lines, none rewritten"},
	{"HEADROOM_RUNS_DIR", "the folder where runs are kept and looked up; ./headroom-runs if it is not set"},
	{"HEADROOM_TERMINATION_LOG", "a file to which run and resume add the last lines that they print, such as /dev/termination-log in a container of Kubernetes; none if it is not set"},
	{"HEADROOM_NOTIFY", "who is told about every run that has no --notify, one in each line"},
	{"GOTRACEBACK", "if set to crash, a crash leaves a core dump, provided that ulimit -c allows it"},
	{"HEADROOM_CUBLAS", "the cuBLAS to try first: a file, or its folder"},
	{"VIRTUAL_ENV, CONDA_PREFIX", "Python environments, where cuBLAS is looked for next"},
}
