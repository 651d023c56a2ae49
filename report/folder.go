package report

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"go.yaml.in/yaml/v3"

	"headroom/report/chart"
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

// Page is the file name of a run's report, in the run's folder.
const Page = "report.html"

// Write writes report.html, report.md and the pictures into the folder dir. It writes
// each file under a temporary name and then renames it, so that a reader sees either the
// old file or the new one.
func (r *Report) Write(dir string) error {
	picture := func(p chart.Picture) string { return "report-" + p.Name + ".svg" }
	for _, p := range r.draw() {
		if err := replace(filepath.Join(dir, picture(p)), p.SVG); err != nil {
			return err
		}
	}
	return writePages(dir, r.HTML, func(w io.Writer) error { return r.Markdown(w, picture) })
}

// writePages writes a page and its Markdown form into dir.
func writePages(dir string, html, markdown func(io.Writer) error) error {
	if err := replace(filepath.Join(dir, "report.md"), markdown); err != nil {
		return err
	}
	return replace(filepath.Join(dir, Page), html)
}

func replace(path string, write func(io.Writer) error) (err error) {
	var text bytes.Buffer
	if err := write(&text); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*.tmp")
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("write %s: %w", path, err), os.Remove(f.Name()))
		}
	}()
	_, err = text.WriteTo(f)
	// Everybody who may read the run's other files may read this one.
	if err = errors.Join(err, f.Chmod(0o644), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}
