package report

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"headroom/report/chart"
)

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
