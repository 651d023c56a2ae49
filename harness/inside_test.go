package harness

import (
	"path/filepath"
	"testing"

	"headroom/memory"
	"headroom/recovery"
	"headroom/runs"
)

// TestWhatAWorkerLearnsIsKept holds that a failure which was survived inside a process is
// counted and changes no plan, and that how many rows fit is known to the next process.
func TestWhatAWorkerLearnsIsKept(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	begin := func() (*runs.Folder, *Session) {
		f, err := runs.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		s, err := Begin(f, SessionOptions{Plan: recovery.Plan{Effective: 8, World: 1, Micro: 8}})
		if err == nil {
			err = s.Attempt(nil)
		}
		if err != nil {
			t.Fatal(err)
		}
		return f, s
	}
	f, s := begin()
	if s.Pieces() != 0 {
		t.Errorf("%d rows before anything failed", s.Pieces())
	}
	s.Survived(runs.Entry{Text: "out of memory; survived in place", OOM: &memory.OutOfMemoryError{Micro: 40}})
	s.KeepPieces(20)
	result, err := s.End(nil)
	if err != nil || result.Failures != 1 || result.InPlace != 1 || result.AllFailures != 1 || result.Plan.Micro != 8 {
		t.Errorf("%+v, %v", result, err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	f, s = begin()
	if s.Pieces() != 20 || s.Running().Micro != 8 {
		t.Errorf("the next process: %d rows, %v", s.Pieces(), s.Running())
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}
