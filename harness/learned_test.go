package harness

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"headroom/memory"
	"headroom/recovery"
	"headroom/runs"
)

// killed runs j until the given step begins. Then it stops the run as if the process had
// been killed: only what is on disk by then remains.
func killed(t *testing.T, j *journey, step int) {
	t.Helper()
	gone, dead := errors.New("the process is gone"), false
	j.lab.before = func(_ *lab, s int) { dead = dead || s == step }
	j.lab.twist = func(*runs.StepReport) error {
		if dead {
			return gone
		}
		return nil
	}
	disk := &faulty{Disk: fast{}, fail: func(int, string) error {
		if dead {
			return gone
		}
		return nil
	}}
	if _, err := j.runOn(context.Background(), disk); !errors.Is(err, gone) {
		t.Fatalf("the process was not killed: %v", err)
	}
	j.lab.before, j.lab.twist, j.lab.trace, j.entries = nil, nil, nil, nil
}

// TestKilledBeforeACheckpoint kills a process before its first checkpoint. The next process
// must know which size was found to fit, and must count the failures of the first.
func TestKilledBeforeACheckpoint(t *testing.T) {
	for _, test := range []struct {
		name     string
		micro    int
		failures int
	}{{"too large", 64, 1}, {"auto", 0, 0}} {
		t.Run(test.name, func(t *testing.T) {
			j := newJourney(t, plan64.WithMicro(test.micro), 4)
			killed(t, j, 3)
			first := 0 // micro-batch in status.json when the attempt begins
			open := j.options.Open
			j.options.Open = func(ctx context.Context) (Trainer, error) {
				s, err := runs.ReadStatus(j.dir)
				if first = s.Plan.Largest(); err != nil {
					t.Error(err)
				}
				return open(ctx)
			}
			result := j.mustRun()
			if got := story(j.lab.trace); got != "32 32 32 32" || first != 32 {
				t.Errorf("trajectory %s, status began with micro-batch %d", got, first)
			}
			if result.Failures != 0 || result.AllFailures != test.failures {
				t.Errorf("%d failures, %d in all, want %d", result.Failures, result.AllFailures, test.failures)
			}
			if got := j.entries[len(j.entries)-1].Text; got != (&Session{o: SessionOptions{Steps: 4}, position: position{step: 4}}).doneText(runs.Tally{Failures: test.failures}) {
				t.Errorf("the last entry says %q", got)
			}
			j.account(4)
		})
	}
}

func TestLearnedOrCheckpoint(t *testing.T) {
	j := newJourney(t, plan64, 6)
	j.options.CheckpointEvery = 2
	killed(t, j, 4)
	f, err := runs.OpenOn(j.dir, fast{})
	if err != nil {
		t.Fatal(err)
	}
	begun := func(l runs.Learned) int {
		if err := f.SetLearned(l); err != nil {
			t.Fatal(err)
		}
		from, _, err := f.NewestCheckpoint()
		if err != nil || from == nil || from.Step != 2 || from.Attempt != 1 {
			t.Fatalf("checkpoint %+v, %v", from, err)
		}
		s := j.options.begun(t, f)
		s.beginHistory(from)
		return s.history.Plan.Largest()
	}
	small := recovery.Learned{Asked: 64, Micro: 8}
	for _, test := range []struct{ attempt, step, want int }{{1, 1, 32}, {1, 2, 8}, {1, 3, 8}, {2, 0, 8}} {
		if got := begun(runs.Learned{Attempt: test.attempt, Step: test.step, Learned: small}); got != test.want {
			t.Errorf("learned in attempt %d at step %d: begins with %d, want %d", test.attempt, test.step, got, test.want)
		}
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(j.dir, "learned.json"), []byte("{"), 0o644); err != nil {
		t.Fatal(err)
	}
	if result := j.mustRun(); !result.Finished || slices.ContainsFunc(j.lab.trace, func(w string) bool { return strings.HasPrefix(w, "?") }) {
		t.Errorf("with a torn learned.json: %+v, %v", result, j.lab.trace)
	}
}

func TestLasting(t *testing.T) {
	for seconds, want := range map[float64]string{0: "under 0.1 ms", 3.91e-05: "under 0.1 ms", 0.000839: "0.8 ms", 0.0424: "42 ms", 0.9996: "1.0 s", 12.34: "12.3 s"} {
		if got := lasting(seconds); got != want {
			t.Errorf("%v s is %q, want %q", seconds, got, want)
		}
	}
}

func TestDoneText(t *testing.T) {
	s := &Session{o: SessionOptions{Steps: 8}, position: position{step: 8}}
	for n, want := range []string{"done: 8 steps", "done: 8 steps, 1 out-of-memory failure survived", "done: 8 steps, 2 out-of-memory failures survived"} {
		if got := s.doneText(runs.Tally{Failures: n}); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	s.o.Steps = 0
	if got, want := s.doneText(runs.Tally{Failures: 1, Gone: 2}), "done, 1 out-of-memory failure survived, device lost 2×"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestSessionOfAnotherBody checks what a body that counts no steps needs from its session:
// the plan is known before the first attempt, and the session uses the body's evidence that
// it was resuming from a checkpoint.
func TestSessionOfAnotherBody(t *testing.T) {
	folder, err := runs.Open(filepath.Join(t.TempDir(), "run"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := folder.Close(); err != nil {
			t.Error(err)
		}
	}()
	plan := recovery.Plan{Effective: 8, World: 1, Micro: 8}
	s, err := Begin(folder, SessionOptions{Plan: plan, Policy: recovery.Policy{Relaunches: 1}})
	if err != nil || s.Running() != plan {
		t.Fatalf("%+v, %v", s.Running(), err)
	}
	if err := s.Attempt(&runs.Checkpoint{Step: 4, Plan: s.Running()}); err != nil {
		t.Fatal(err)
	}
	full := memory.Stats{Capacity: memory.GiB, Reserved: memory.GiB, Allocated: memory.GiB}
	d, err := s.Handle(recovery.Event{OOM: &memory.Evidence{Resuming: true, Failure: memory.OutOfMemoryError{Requested: 1, Micro: 8, Phase: memory.PhaseForward, Stats: full}}}, 0)
	if err != nil || d.Remedy != recovery.Relaunch || d.Verdict.Cause != memory.Resume {
		t.Errorf("%+v, %v", d, err)
	}
}

// TestFoundIsKept checks that what a trial has found before a run is in the run's folder before its first step, and is still there
// when the run goes on without a trial.
func TestFoundIsKept(t *testing.T) {
	folder, err := runs.Open(filepath.Join(t.TempDir(), "run"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := folder.Close(); err != nil {
			t.Error(err)
		}
	}()
	want := runs.Found{Key: "key", Rows: 8, Largest: 4, Micro: 4}
	options := SessionOptions{Plan: recovery.Plan{Effective: 8, World: 1, Micro: 8}, Found: &want}
	for pieces, found := range []*runs.Found{&want, nil} {
		options.Found = found
		s, err := Begin(folder, options)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Attempt(nil); err != nil {
			t.Fatal(err)
		}
		if pieces > 0 {
			s.KeepPieces(pieces)
		}
		if l, err := folder.Learned(); err != nil || l == nil || l.Found == nil || *l.Found != want {
			t.Errorf("%+v, %v", l, err)
		}
	}
}
