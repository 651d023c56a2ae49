package report

import (
	"errors"
	"os"
	"path/filepath"

	"headroom/runs"
)

// Read collects what the run in dir left behind. It needs no lock and works
// while the run writes. Lines that cannot be read are named in Problems and
// cost nothing else. A folder without a status is read all the same.
func Read(dir string) (Input, error) {
	in := Input{Name: filepath.Base(filepath.Clean(dir))}
	var err error
	if in.Entries, err = runs.ReadJournal(dir); !in.torn(err) {
		return in, err
	}
	if in.Steps, err = runs.ReadMetrics(dir); !in.torn(err) {
		return in, err
	}
	status, err := runs.ReadStatus(dir)
	switch {
	case err == nil:
		in.Planned, in.Effective = status.Steps, status.Plan.Effective
		in.Running = status.State == runs.StateRunning
	case !errors.Is(err, os.ErrNotExist):
		in.Problems = append(in.Problems, err.Error())
	}
	return in, nil
}

// torn notes a file that was read in part. It tells whether err leaves
// something to go on with.
func (in *Input) torn(err error) bool {
	if torn := (*runs.TornError)(nil); errors.As(err, &torn) {
		in.Problems = append(in.Problems, err.Error())
		return true
	}
	return err == nil
}
