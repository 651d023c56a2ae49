package wrap

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"headroom/harness"
	"headroom/memory"
	"headroom/nvml"
	"headroom/recovery"
	"headroom/runs"
	"headroom/wrap/checkpoints"
	"headroom/wrap/command"
	"headroom/wrap/exits"
	"headroom/wrap/profile"
	"headroom/wrap/rewrite"
)

// plainMatch returns the Wrapped of a plain script whose flags the user named.
func plainMatch(t *testing.T, knobs ...string) *Wrapped {
	t.Helper()
	c := command.Line{Args: strings.Fields("python mine.py --bs 32 --acc 1"), Env: []string{"A=b"}, Dir: "/home/me"}
	m, err := rewrite.Recognise(c, profile.Builtin(), rewrite.Given{Knobs: append([]string{"micro=--bs", "accumulation=--acc"}, knobs...)})
	if err != nil {
		t.Fatal(err)
	}
	asked, err := rewrite.Asks(m)
	if err != nil {
		t.Fatal(err)
	}
	return &Wrapped{Line: c, Seen: m, Match: m, Asked: asked.Plan}
}

// begun gives w a run that has just begun, with the given name. Each warning goes to told.
func begun(t *testing.T, w *Wrapped, name string, told func(text string)) *Wrapped {
	t.Helper()
	folder, s := attempted(t, name, recovery.Plan{Effective: 1, World: 1, Micro: 1})
	w.Folder, w.journal, w.Reporter = folder, s, warned(told)
	return w
}

// attempted opens a run's folder of the given name, to be closed at the end of the test, and begins its session and
// first attempt.
func attempted(t *testing.T, name string, plan recovery.Plan) (*runs.Folder, *harness.Session) {
	t.Helper()
	folder, err := runs.Open(filepath.Join(t.TempDir(), name))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := folder.Close(); err != nil {
			t.Error(err)
		}
	})
	s, err := harness.Begin(folder, harness.SessionOptions{Plan: plan})
	if err == nil {
		err = s.Attempt(nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	return folder, s
}

// warned is a [Reporter] that hears only warnings.
type warned func(text string)

func (warned) Entry(runs.Entry)                  {}
func (warned) Say(string, ...any)                {}
func (w warned) Warn(format string, args ...any) { w(fmt.Sprintf(format, args...)) }

// seenInside is an [Inside] that has seen the given facts.
type seenInside struct {
	out      time.Time    // when memory runs out
	training func() []int // the processes that are still training at the end of an attempt; nil for none
	steps    int
}

func (i *seenInside) Begin(c command.Line) command.Line   { return c }
func (i *seenInside) RunsOut() (at time.Time, why string) { return i.out, "it grows" }
func (i *seenInside) Made() int                           { return i.steps }

func (i *seenInside) End(o exits.Outcome) exits.Outcome {
	if i.training != nil {
		o.Training = i.training()
	}
	return o
}

// TestPrepare checks that prepare returns the user's own command if nothing has to change,
// and that a change which headroom cannot verify needs the user's trust.
func TestPrepare(t *testing.T) {
	from := &checkpoint{Path: "out/step-4.json", Step: 4, Micro: 32, found: &checkpoints.Checkpoint{Path: "out/step-4.json"}}
	resumes := []string{"resume=--from", "checkpoints=out/step-*.json"}
	for _, c := range []struct {
		name     string
		knobs    []string
		trust    bool
		micro    int
		from     *checkpoint
		want     string
		unproven bool
	}{
		{"as asked", nil, false, 32, nil, "python mine.py --bs 32 --acc 1", false},
		{"as asked, from a checkpoint", resumes, false, 32, from, "python mine.py --bs 32 --acc 1 --from out/step-4.json", false},
		{"smaller, on nobody's word", nil, false, 16, nil, "", true},
		{"smaller, on the user's word", nil, true, 16, nil, "python mine.py --bs 16 --acc 2", false},
		{"smaller, from a checkpoint", resumes, true, 8, from, "python mine.py --bs 8 --acc 4 --from out/step-4.json", false},
	} {
		w := plainMatch(t, c.knobs...)
		w.Trust = c.trust
		next, err := w.prepare(w.Asked.WithMicro(c.micro), c.from)
		var unproven *UnprovenError
		if errors.As(err, &unproven) != c.unproven || (err != nil) != c.unproven {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if got := strings.Join(next.Command.Args, " "); err == nil && got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
	mixed := plainMatch(t)
	mixed.Trust, mixed.mixed = true, "matmul compares every row of the batch with every other"
	if _, err := mixed.prepare(mixed.Asked.WithMicro(16), nil); !errors.As(err, new(*MixedError)) || !strings.Contains(err.Error(), mixed.mixed) {
		t.Errorf("smaller, although that trains something else: %v", err)
	}
	if next, err := mixed.prepare(mixed.Asked, nil); err != nil || !slices.Equal(next.Command.Args, mixed.Line.Args) {
		t.Errorf("as asked, although a smaller one would train something else: %v, %v", next.Command.Args, err)
	}
	unknown := Wrapped{Line: command.Line{Args: []string{"make", "train"}}}
	if next, err := unknown.prepare(recovery.Plan{Effective: 1, World: 1, Micro: 1}, nil); err != nil || len(next.Changes) > 0 || !slices.Equal(next.Command.Args, unknown.Line.Args) {
		t.Errorf("a command of which nothing is known: %v, %v", next.Command.Args, err)
	}
}

// TestNamed checks which variables are added to a command's environment, and that the
// rest of it is left as the user set it.
func TestNamed(t *testing.T) {
	w := begun(t, plainMatch(t), "night", func(text string) { t.Error(text) })
	got := w.named(w.Line, w.Asked.WithMicro(16)).Env
	if want := []string{"A=b", "HEADROOM_RUN=night", "HEADROOM_ATTEMPT=1", "HEADROOM_FOLDER=" + command.Resolved(w.Folder.Dir()), "HEADROOM_MICRO=16"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	w.Match = nil
	if got := w.named(w.Line, w.Asked).Env; slices.ContainsFunc(got, func(v string) bool { return strings.HasPrefix(v, "HEADROOM_MICRO") }) {
		t.Errorf("nothing is known of its batch, and it is told %q", got)
	}
	if len(w.Line.Env) != 1 {
		t.Errorf("the user's environment has become %q", w.Line.Env)
	}
}

// TestRankErrorsOfThisAttempt checks that a launcher's error files are read from the log
// folder that the command names, and that those of earlier attempts are left out.
func TestRankErrorsOfThisAttempt(t *testing.T) {
	dir := t.TempDir()
	begun := time.Now()
	for name, at := range map[string]time.Time{"earlier": begun.Add(-time.Minute), "this": begun.Add(time.Second)} {
		folder := filepath.Join(dir, "logs", name, "attempt_0", "1")
		if err := os.MkdirAll(folder, 0o755); err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(folder, "error.json")
		if err := os.WriteFile(file, []byte(`{"message": "torch.OutOfMemoryError: `+name+`"}`), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(file, at, at); err != nil {
			t.Fatal(err)
		}
	}
	w := &Wrapped{Reporter: warned(func(text string) { t.Error(text) })}
	c := command.Line{Args: []string{"torchrun", "--log-dir", "logs", "--nproc-per-node", "2", "train.py"}, Dir: dir}
	if got := w.rankErrors(c, begun); len(got) != 1 || got[0].Rank != 1 || got[0].Message != "torch.OutOfMemoryError: this" {
		t.Errorf("%+v", got)
	}
	c.Args = []string{"torchrun", "train.py"}
	if got := w.rankErrors(c, begun); got != nil {
		t.Errorf("without a log folder: %+v", got)
	}
}

// TestGate checks that a start waits until enough memory is free, that it reports once
// that it is waiting, and that the wait can be interrupted.
func TestGate(t *testing.T) {
	ctx, stop := context.WithCancel(context.Background())
	stop()
	for free, waits := range map[memory.Bytes]bool{0: false, memory.GiB: false, 2 * memory.GiB: true} {
		var told []string
		w := &Wrapped{Free: free, Reporter: warned(func(text string) { told = append(told, text) }),
			gpus: func() ([]nvml.GPU, error) { return []nvml.GPU{{Total: 8 * memory.GiB, Free: memory.GiB}}, nil }}
		err := w.gate(ctx)
		if errors.Is(err, harness.ErrInterrupted) != waits || (err != nil) != waits || (len(told) == 1) != waits {
			t.Errorf("%v: %v, told %q", free, err, told)
		}
	}
}
