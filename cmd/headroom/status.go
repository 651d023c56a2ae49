package main

import (
	"errors"
	"path/filepath"

	"github.com/urfave/cli/v2"

	"headroom/runs"
)

func statusCommand(u *ui) *cli.Command {
	command := &cli.Command{
		Name:      "status",
		Usage:     "show where a run stands, or all runs",
		ArgsUsage: "[RUN]",
		Description: `RUN is the name of a run in ./runs, or the path of its folder. A run may be
looked at while it works.`,
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
			u.hint(staleHint(standings))
			return errors.Join(errs...)
		},
	}
	command.BashComplete = completeFlags(command, runNames)
	return command
}

// standing is where one run stands.
type standing struct {
	Name   string `json:"name"`
	Folder string `json:"folder"`
	runs.Status
	Crash *crash `json:"crash,omitempty"` // how the process of a stale run crashed, if it did
}

// standingOf reads the status of the run in dir. A run that was killed before
// it wrote one is stale.
func standingOf(dir string) (standing, error) {
	s, err := runs.ReadStatus(dir)
	if missing(err) {
		s, err = runs.Status{State: runs.StateStale}, nil
	}
	at := standing{Name: filepath.Base(dir), Folder: dir, Status: s}
	if s.State == runs.StateStale {
		at.Crash = crashOf(dir)
	}
	return at, err
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
		dirs = append(dirs, filepath.Join(runsFolder, name))
	}
	if dirs == nil {
		u.noRuns()
	}
	return dirs, nil
}
