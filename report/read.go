package report

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"go.yaml.in/yaml/v3"

	"headroom/runs"
)

// Read collects what the run in dir left behind. It needs no lock and may be used while
// the run is still writing. Lines that cannot be read are left out and named in Problems.
// A folder without a status can be read, too.
func Read(dir string) (Input, error) {
	in, _, err := read(dir)
	return in, err
}

// read does the same as [Read] and also returns the status. The status is nil if there is
// none or if it cannot be read.
func read(dir string) (in Input, status *runs.Status, err error) {
	in.Name = filepath.Base(filepath.Clean(dir))
	if in.Entries, err = runs.ReadJournal(dir); !in.torn(err) {
		return in, nil, err
	}
	found, err := runs.ReadStatus(dir)
	switch {
	case err == nil:
		status = &found
		in.Planned, in.Effective = status.Steps, status.Plan.Effective
		in.Running = status.State == runs.StateRunning
	case !errors.Is(err, os.ErrNotExist):
		in.Problems = append(in.Problems, err.Error())
	}
	in.Command, err = commandIn(dir)
	if err != nil {
		in.Problems = append(in.Problems, err.Error())
	}
	if err := bodyOf(in).metrics(&in, dir); !in.torn(err) {
		return in, status, err
	}
	return in, status, nil
}

// commandIn returns the command in run.yaml, quoted for pasting into a shell. It returns ""
// if the run has no wrapped command.
func commandIn(dir string) (string, error) {
	text, err := os.ReadFile(filepath.Join(dir, "run.yaml"))
	if errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	var kept struct{ Command []string }
	if err == nil {
		err = yaml.Unmarshal(text, &kept)
	}
	if err != nil {
		return "", fmt.Errorf("the command in run.yaml: %w", err)
	}
	masked, _ := runs.Masked(kept.Command) // earlier versions wrote secrets into run.yaml
	return runs.Shell(masked...), nil
}

// torn records in Problems that a file could be read only in part. It reports whether
// reading can continue after err.
func (in *Input) torn(err error) bool {
	if torn := (*runs.TornError)(nil); errors.As(err, &torn) {
		in.Problems = append(in.Problems, err.Error())
		return true
	}
	return err == nil
}
