package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/urfave/cli/v2"

	"headroom/configs"
	"headroom/runs"
	"headroom/wrap/child"
)

func statusCommand(u *ui) *cli.Command {
	command := &cli.Command{
		Name:      "status",
		Usage:     "show the state of a run, or of all runs",
		ArgsUsage: "[RUN]",
		Description: `RUN is the name of a run in ./runs (or $HEADROOM_RUNS_DIR), or the path of its
folder. The run may still be in progress.`,
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
					errs = append(errs, u.answerJSON(s))
				}
				return errors.Join(errs...)
			}
			errs = append(errs, u.standings(standings))
			u.hint(statusHint(standings, c.Args().Present()))
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
		return rate(s.SamplesPerSecond)
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
	return share(peak, capacity)
}

// newest returns the time at which the run last recorded anything.
func (s standing) newest() time.Time {
	if s.Seen != nil && s.Seen.Time.After(s.Updated) {
		return s.Seen.Time
	}
	return s.Updated
}

func wantedRuns(u *ui, c *cli.Context) ([]string, error) {
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
		u.noRuns()
	}
	return dirs, nil
}
