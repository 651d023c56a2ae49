package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"

	"headroom/cmd/headroom/ui"
	"headroom/configs"
	"headroom/runs"
	"headroom/spelling"
	"headroom/wrap/child"
)

func statusCommand(u *ui.UI) *cli.Command {
	command := &cli.Command{
		Name:      "status",
		Usage:     "show the state of a run, or of all runs",
		ArgsUsage: "[RUN]",
		Description: `RUN is the name of a run in ./headroom-runs (or $HEADROOM_RUNS_DIR), or the
path of its folder. The run may still be in progress.`,
		Flags: []cli.Flag{jsonFlag("print one JSON object per run, each on its own line")},
		Action: func(c *cli.Context) error {
			dirs, err := wantedRuns(u, c)
			if err != nil {
				return err
			}
			var standings []standing
			var errs []error
			for _, dir := range dirs {
				s, err := standingOf(dir)
				errs = append(errs, err)
				if err == nil {
					standings = append(standings, s)
				}
			}
			if c.Bool("json") {
				for _, s := range standings {
					errs = append(errs, u.AnswerJSON(s))
				}
				return errors.Join(errs...)
			}
			errs = append(errs, printStandings(u, standings))
			u.Hint(statusHint(standings, c.Args().Present()))
			return errors.Join(errs...)
		},
	}
	command.BashComplete = completeFlags(command, runNames)
	return command
}

// standing is the state of one run, as headroom status shows it.
type standing struct {
	Name   string `json:"name"`
	Folder string `json:"folder"`
	runs.Status
	Seen  *runs.ProcessStep `json:"seen,omitempty"`  // the newest step of a wrapped command's newest attempt, if a worker saw one
	Crash *crash            `json:"crash,omitempty"` // how the process of a stale run crashed, if it did
	Lives *child.Left       `json:"lives,omitempty"` // a process of a stale run's command, which goes on without headroom
}

// standingOf returns the state of the run in dir. A run that was killed before it
// wrote a status is stale.
func standingOf(dir string) (standing, error) {
	s, err := runs.ReadStatus(dir)
	if missing(err) {
		s, err = runs.Status{State: runs.StateStale}, nil
	}
	if err != nil {
		return standing{}, err
	}
	at := standing{Name: filepath.Base(dir), Folder: dir, Status: s}
	if seen := runs.NewestProcessStep(dir); seen != nil && seen.Attempt == s.Attempt {
		at.Seen = seen
	}
	if s.State == runs.StateStale {
		at.Crash, at.Lives = crashOf(dir), child.Living(dir, s)
	}
	return at, nil
}

// made says how far the run has come: "120/200" for a run of a configuration. A process of a
// wrapped command counts only its own steps, so if the newest process continued from the checkpoint
// of step 100 and has run 25 steps, made returns "100+25". If no step was seen, only the newest
// checkpoint is known.
func (s standing) made() string {
	switch {
	case s.Steps > 0:
		return fmt.Sprintf("%d/%d", s.Step, s.Steps)
	case s.Seen != nil && s.From > 0:
		return fmt.Sprintf("%d+%d", s.From, s.Seen.Made)
	case s.Seen != nil:
		return fmt.Sprint(s.Seen.Made)
	case s.Step > 0:
		return fmt.Sprintf("checkpoint %d", s.Step)
	}
	return "-"
}

// speed returns the current speed of a run in progress, or "-" for other runs.
func (s standing) speed() string {
	switch {
	case s.State != runs.StateRunning:
	case s.Seen != nil && s.Seen.Seconds > 0:
		return fmt.Sprintf("%.2g s/step", s.Seen.Seconds)
	case s.SamplesPerSecond > 0:
		return ui.Rate(s.SamplesPerSecond)
	}
	return "-"
}

// memory returns the peak and the capacity, as in "12.6/15 MiB", or "-" if the capacity is not
// known. If a worker has seen a step of a wrapped command, the peak is that of the command's
// process so far; otherwise it is that of the newest step.
func (s standing) memory() string {
	peak, capacity := s.Peak, s.Capacity
	if s.Seen != nil {
		peak, capacity = s.Seen.Memory.Peak, s.Seen.Memory.Capacity
	}
	if capacity <= 0 {
		return "-"
	}
	return ui.Share(peak, capacity)
}

// newest returns the time at which the run last recorded anything.
func (s standing) newest() time.Time {
	if s.Seen != nil && s.Seen.Time.After(s.Updated) {
		return s.Seen.Time
	}
	return s.Updated
}

func wantedRuns(u *ui.UI, c *cli.Context) ([]string, error) {
	if c.Args().Present() {
		word, err := oneArgument(c, "the name of a run", "")
		if err != nil {
			return nil, err
		}
		dir, err := runFolder(word)
		return []string{dir}, err
	}
	var dirs []string
	for _, name := range runNames() {
		dirs = append(dirs, filepath.Join(configs.RunsDir(), name))
	}
	if dirs == nil {
		u.NoRuns()
	}
	return dirs, nil
}

// word returns what names the run on a command line: its name, or else its folder.
func (s standing) word() string {
	if filepath.Join(configs.RunsDir(), s.Name) == filepath.Clean(s.Folder) {
		return s.Name
	}
	return s.Folder
}

// goesOn says how to continue a run whose process is gone.
func (s standing) goesOn() string {
	if configs.IsCommand(filepath.Join(s.Folder, "run.yaml")) {
		if _, err := continuable(s.Folder, false); err != nil {
			return "headroom does not know how to continue its command: start it again"
		}
		return fmt.Sprintf("headroom resume %s starts its command again from the newest checkpoint", s.word())
	}
	return "rerunning the command that started it continues from the newest checkpoint"
}

// staleHint says what to do about the first run whose command goes on without headroom, or else
// about the first run that crashed or, if none did, about the first
// run whose process is gone. It returns "" if there is no such run.
func staleHint(all []standing) string {
	for _, s := range all {
		if s.Lives != nil {
			return fmt.Sprintf("%s is stale: its headroom was killed, but its command is still running: %s; headroom resume %s continues once it has ended", s.Name, child.LeftText([]child.Left{*s.Lives}), s.word())
		}
	}
	for _, s := range all {
		if s.Crash != nil {
			return fmt.Sprintf("%s crashed: %s; the trace is in %s, and %s", s.Name, s.Crash.Error, s.Crash.Trace, s.goesOn())
		}
	}
	for _, s := range all {
		if s.State == runs.StateStale {
			return fmt.Sprintf("%s is stale: its process is gone, and %s", s.Name, s.goesOn())
		}
	}
	return ""
}

// statusHint returns what to do next: about a run that crashed or is stale, if there is one, or
// else about the run that the user named.
func statusHint(all []standing, named bool) string {
	if hint := staleHint(all); hint != "" || !named || len(all) != 1 {
		return hint
	}
	s := all[0]
	switch s.State {
	case runs.StateInterrupted:
		return fmt.Sprintf("%s was interrupted, and %s", s.Name, s.goesOn())
	case runs.StateDone, runs.StateFailed:
		return fmt.Sprintf("headroom report %s --open shows what happened, and what to change next", s.word())
	}
	return ""
}

// runFolder returns the folder of the run that word names. word is the name of a run in
// [configs.RunsDir], or the path of a run's folder.
func runFolder(word string) (string, error) {
	for _, dir := range []string{filepath.Join(configs.RunsDir(), word), word} {
		if isRun(dir) {
			return dir, nil
		}
	}
	hint := `"headroom status" lists the runs here`
	if near := spelling.Nearest(word, runNames()); near != "" {
		hint = fmt.Sprintf("did you mean %q?", near)
	}
	return "", ui.Usagef(hint, "no run %q: it is neither the name of a run in %s nor the path of one", word, configs.RunsDir())
}

func isRun(dir string) bool {
	for _, name := range []string{"journal.jsonl", "run.yaml"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
			return true
		}
	}
	return false
}

// runNames returns the names of the runs in [configs.RunsDir], sorted. It returns none
// if that folder cannot be read.
func runNames() []string {
	entries, _ := os.ReadDir(configs.RunsDir())
	var names []string
	for _, e := range entries {
		if e.IsDir() && isRun(filepath.Join(configs.RunsDir(), e.Name())) {
			names = append(names, e.Name())
		}
	}
	return slices.Clip(names)
}

// missing reports whether err means that a file or folder does not exist.
func missing(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)
}
