package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"
)

func manCommand(u *ui) *cli.Command {
	return &cli.Command{
		Name:        "man",
		Usage:       "print the manual page",
		Description: "headroom man | man -l -        shows it\nheadroom man > headroom.1      saves it",
		Action: func(c *cli.Context) error {
			if err := noArguments(c); err != nil {
				return err
			}
			return u.answer(strings.TrimRight(manPage(c.App), "\n"))
		},
	}
}

// manPage is the manual in section 1, in roff's man macros, from the same tables
// as the help.
func manPage(app *cli.App) string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line(`.TH HEADROOM 1 "" "headroom %s" "User Commands"`, roff(readBuild().Version))
	line(".SH NAME\nheadroom \\- %s", roff(app.Usage))
	line(".SH SYNOPSIS\n.B headroom\n.I COMMAND\n[\\fIFLAGS\\fR] [\\fIARGUMENTS\\fR]")
	line(".SH DESCRIPTION\n%s", roffParagraphs(app.Description))
	line(".SH COMMANDS\nEach command is described by its\n.B \\-\\-help\nflag.")
	for _, command := range app.VisibleCommands() {
		line(".SS headroom %s %s\n%s", command.Name, roff(command.ArgsUsage), roff(command.Usage))
		if command.Description != "" {
			line(".PP\n%s", roffParagraphs(command.Description))
		}
		manFlags(line, command.VisibleFlags())
	}
	line(".SH EXIT STATUS")
	for _, e := range exits {
		line(".TP\n.B %s\n%s", e.label(), roff(e.means))
	}
	line(".SH ENVIRONMENT")
	for _, v := range environment {
		line(".TP\n.B %s\n%s", v.name, roff(v.means))
	}
	return b.String()
}

func manFlags(line func(string, ...any), flags []cli.Flag) {
	for _, f := range flags {
		names, value, usage := flagParts(f)
		if slices.Contains(names, "--help") { // the library adds it to the command that runs, and to no other
			continue
		}
		if value != "" {
			value = ` \fI` + roff(value) + `\fR`
		}
		line(".TP\n.B %s%s\n%s", roff(strings.Join(names, ", ")), value, roff(usage))
	}
}

// roffParagraphs sets prose as wide as the reader's terminal, and leaves the
// lines of a table as they are.
func roffParagraphs(text string) string {
	paragraphs := strings.Split(roff(text), "\n\n")
	for i, p := range paragraphs {
		if strings.Contains(p, "  ") {
			paragraphs[i] = ".nf\n" + p + "\n.fi"
		}
	}
	return strings.Join(paragraphs, "\n.PP\n")
}

// roff escapes what roff would take as its own: backslashes, hyphens (which it
// would set as dashes that cannot be pasted), and a full stop or an apostrophe
// that starts a line.
func roff(text string) string {
	lines := strings.Split(strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(text), "\n")
	for i, l := range lines {
		if strings.HasPrefix(l, ".") || strings.HasPrefix(l, "'") {
			lines[i] = `\&` + l
		}
	}
	return strings.Join(lines, "\n")
}

// environment lists the variables that headroom reads.
var environment = []struct{ name, means string }{
	{"NO_COLOR", "if it is not empty, nothing is coloured"},
	{"TERM", "dumb: plain lines, none rewritten"},
	{"GOTRACEBACK", "crash: a crash leaves a core dump, if ulimit -c allows it"},
	{"HEADROOM_CUBLAS", "the cuBLAS to try first: a file, or its folder"},
	{"VIRTUAL_ENV, CONDA_PREFIX", "Python environments, where cuBLAS is looked for next"},
}
