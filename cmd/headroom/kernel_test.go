package main

import (
	"os/exec"
	"path/filepath"
	"testing"

	"headroom/runs"
)

// TestKernel uses a kernel of Jupyter's that headroom has installed. Its restart and its shutdown are no failures.
func TestKernel(t *testing.T) {
	python := pythonWithTorch(t)
	jupyter := installed(t, "HEADROOM_NOTEBOOK", "make notebook", "no Jupyter: make notebook fetches it for this test")
	tests, err := filepath.Abs(filepath.Join("..", "..", "worker", "python", "tests"))
	if err != nil {
		t.Fatal(err)
	}
	headroom, err := exec.LookPath("headroom")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	c := exec.Command(python, filepath.Join(tests, "kernel_runs.py"), headroom, dir)
	c.Dir, c.Env = dir, append(c.Environ(), "HEADROOM_NOTEBOOK="+jupyter, "PYTHONPATH="+jupyter, "PYTHONDONTWRITEBYTECODE=1")
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	found, err := filepath.Glob(filepath.Join(dir, "runs", "*"))
	if err != nil || len(found) != 2 {
		t.Errorf("%q, %v: want a run for each start of the kernel", found, err)
	}
	for _, run := range found {
		if s, err := runs.ReadStatus(run); err != nil || s.State != runs.StateDone {
			t.Errorf("%s: %v, %v", run, s.State, err)
		}
	}
}
