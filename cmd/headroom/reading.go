package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"headroom/cmd/headroom/ui"
	"headroom/configs"
	"headroom/job"
	"headroom/memory"
	"headroom/runs"
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

// grown is what a run of a command was found to hold more and more memory.
type grown struct {
	Run string `json:"run"`
	memory.Holder
}

// lastGrown returns what the newest of the runs of a command that found anything has found, or nil: also if
// the line that it names has been changed since.
func lastGrown(line command.Line) *grown {
	wanted, _ := runs.Masked(line.Args)
	var newest time.Time
	var found *grown
	for _, name := range runNames() {
		dir := filepath.Join(configs.RunsDir(), name)
		c, err := configs.LoadCommand(filepath.Join(dir, "run.yaml"))
		if err != nil || c.Dir != line.Dir || !slices.Equal(c.Args, wanted) {
			continue
		}
		entries, _ := runs.ReadJournal(dir) // what can be read is enough
		for _, e := range entries {
			if e.Holder != nil && e.Time.After(newest) && !changed(e.Holder.Kept, line.Dir, e.Time) {
				newest, found = e.Time, &grown{name, *e.Holder}
			}
		}
	}
	return found
}

// changed reports whether a file, given with a line, has been written to after a time.
func changed(place, dir string, after time.Time) bool {
	file, _, _ := strings.Cut(place, ":")
	if !filepath.IsAbs(file) {
		file = filepath.Join(dir, file)
	}
	state, err := os.Stat(file)
	return err != nil || state.ModTime().After(after)
}

// findings writes what was found in a script, each with its line, why, and what to write. What a run of it has found is
// written beside the finding that speaks of the same, or by itself if none does.
func findings(b *strings.Builder, found []worker.Finding, seen *grown, dir string) {
	same := -1
	if seen != nil {
		seen.Holder, same = worker.Joined(seen.Holder, found, dir)
	}
	if len(found) > 0 {
		b.WriteString("read in the script:\n")
	}
	for i, f := range found {
		fmt.Fprintf(b, "  %s:%d: %s\n", f.File, f.Line, f.Why)
		if i == same {
			fmt.Fprintf(b, "    in the run %s: %s\n", seen.Run, seen.Facts())
		}
		fmt.Fprintf(b, "    instead: %s\n", f.Instead)
	}
	if seen != nil && same < 0 {
		fmt.Fprintf(b, "found in the run %s:\n  %s\n", seen.Run, seen.Holder)
	}
}
