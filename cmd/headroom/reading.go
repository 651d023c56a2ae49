package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/urfave/cli/v2"

	"headroom/cmd/headroom/ui"
	"headroom/job"
	"headroom/worker"
	"headroom/wrap/command"
)

// readFlags returns the flags of a command that reads the user's script.
func readFlags() []cli.Flag {
	return []cli.Flag{&cli.StringFlag{Name: "sarif", Usage: "write what is read from the script to `FILE`, as SARIF"}}
}

// readScript reads the script of the user's command. With --sarif it also writes what was found to a file.
func readScript(c *cli.Context, line command.Line) (job.Reading, error) {
	reading := job.Read(c.Context, line, readBuild().Version)
	if !isSet(c, "sarif") {
		return reading, nil
	}
	text, err := sarif(reading, line.Dir, readBuild().Version)
	if err != nil {
		return reading, fmt.Errorf("--sarif: %w", err)
	}
	if err := os.WriteFile(c.String("sarif"), text, 0o644); err != nil {
		return reading, ui.Usagef("name a file that can be written", "--sarif: %w", err)
	}
	return reading, nil
}

// findings writes what was found in a script, each with its line, why, and what to write.
func findings(b *strings.Builder, found []worker.Finding) {
	if len(found) == 0 {
		return
	}
	b.WriteString("read in the script:\n")
	for _, f := range found {
		fmt.Fprintf(b, "  %s:%d: %s\n    instead: %s\n", f.File, f.Line, f.Why, f.Instead)
	}
}
