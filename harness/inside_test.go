package harness

import (
	"path/filepath"
	"slices"
	"testing"

	"headroom/memory"
	"headroom/recovery"
	"headroom/runs"
)

// TestWhatAWorkerLearnsIsKept checks that a failure which a worker survived inside its
// process is counted and changes no plan, and that the next process knows how many rows
// fit.
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
	seen := runs.ProcessStep{PID: 7, Made: 31, Rows: 40, Pieces: 2, Seconds: 0.5, Memory: memory.Stats{Allocated: 5}}
	s.Stepped(seen)
	seen.Attempt = 1
	if written, err := runs.ReadProcessSteps(dir); err != nil || len(written) != 1 || written[0] != seen {
		t.Errorf("%+v, %v", written, err)
	}
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
	seen.Attempt, seen.Made = 2, 1
	s.Stepped(seen)
	if written, err := runs.ReadProcessSteps(dir); err != nil || len(written) != 2 || written[0].Made != 31 || written[1] != seen {
		t.Errorf("the steps before are lost: %+v, %v", written, err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestACommandsStartIsTold checks that the entries about the start of a command do not
// mention numbers of steps or samples, which are not known.
func TestACommandsStartIsTold(t *testing.T) {
	for name, c := range map[string]struct {
		o    SessionOptions
		want []string
	}{
		"a command":                {SessionOptions{Plan: recovery.Plan{Effective: 1, World: 1, Micro: 1}}, []string{"a run starts", "attempt 1 starts"}},
		"one whose batch is known": {SessionOptions{Plan: recovery.Plan{Effective: 8, World: 1, Micro: 8}}, []string{"a run with an effective batch of 8 starts", "attempt 1 starts"}},
		"a training of headroom's": {SessionOptions{Steps: 3, Plan: recovery.Plan{Effective: 8, World: 1, Micro: 8}}, []string{"a run of 3 steps of 8 samples starts", "attempt 1 starts from step 0 of 3"}},
	} {
		f, err := runs.Open(filepath.Join(t.TempDir(), "run"))
		if err != nil {
			t.Fatal(err)
		}
		var told []string
		c.o.OnEntry = func(e runs.Entry) { told = append(told, e.Text) }
		s, err := Begin(f, c.o)
		if err == nil {
			err = s.Attempt(nil)
		}
		if err != nil || len(told) < 2 || !slices.Equal(told[:2], c.want) {
			t.Errorf("%s: %q, %v", name, told, err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
