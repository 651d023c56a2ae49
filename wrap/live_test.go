package wrap

import (
	"context"
	"errors"
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
	"headroom/wrap/checkpoints"
	"headroom/wrap/command"
	"headroom/wrap/profile"
	"headroom/wrap/rewrite"
)

// plainMatch returns the Wrapped of a plain script whose flags the user named.
func plainMatch(t *testing.T, knobs ...string) Wrapped {
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
	return Wrapped{Command: c, Match: m, Asked: asked.Plan, Run: "night", Number: func() int { return 3 }}
}

// TestPrepare checks that Prepare returns the user's own command if nothing has to change,
// and that a change which headroom cannot verify needs the user's trust.
func TestPrepare(t *testing.T) {
	from := &Saved{Path: "out/step-4.json", Step: 4, Micro: 32, checkpoint: &checkpoints.Checkpoint{Path: "out/step-4.json"}}
	resumes := []string{"resume=--from", "checkpoints=out/step-*.json"}
	for _, c := range []struct {
		name     string
		knobs    []string
		trust    bool
		micro    int
		from     *Saved
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
		next, err := w.Prepare(w.Asked.WithMicro(c.micro), c.from)
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
	mixed.Trust, mixed.Mixed = true, "matmul compares every row of the batch with every other"
	if _, err := mixed.Prepare(mixed.Asked.WithMicro(16), nil); !errors.As(err, new(*MixedError)) || !strings.Contains(err.Error(), mixed.Mixed) {
		t.Errorf("smaller, although that trains something else: %v", err)
	}
	if next, err := mixed.Prepare(mixed.Asked, nil); err != nil || !slices.Equal(next.Command.Args, mixed.Command.Args) {
		t.Errorf("as asked, although a smaller one would train something else: %v, %v", next.Command.Args, err)
	}
	unknown := Wrapped{Command: command.Line{Args: []string{"make", "train"}}}
	if next, err := unknown.Prepare(recovery.Plan{Effective: 1, World: 1, Micro: 1}, nil); err != nil || len(next.Changes) > 0 || !slices.Equal(next.Command.Args, unknown.Command.Args) {
		t.Errorf("a command of which nothing is known: %v, %v", next.Command.Args, err)
	}
}

// TestNamed checks which variables are added to a command's environment, and that the
// rest of it is left as the user set it.
func TestNamed(t *testing.T) {
	w := plainMatch(t)
	got := w.named(w.Command, w.Asked.WithMicro(16)).Env
	if want := []string{"A=b", "HEADROOM_RUN=night", "HEADROOM_ATTEMPT=3", "HEADROOM_MICRO=16"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	w.Folder = "/no/such/night"
	if got := w.named(w.Command, w.Asked).Env; !slices.Contains(got, "HEADROOM_FOLDER=/no/such/night") {
		t.Errorf("%q: the run's folder is missing", got)
	}
	w.Match = nil
	if got := w.named(w.Command, w.Asked).Env; slices.ContainsFunc(got, func(v string) bool { return strings.HasPrefix(v, "HEADROOM_MICRO") }) {
		t.Errorf("nothing is known of its batch, and it is told %q", got)
	}
	if len(w.Command.Env) != 1 {
		t.Errorf("the user's environment has become %q", w.Command.Env)
	}
}

// TestRankErrorsOfThisLife checks that a launcher's error files are read from the log
// folder that the command names, and that those of earlier lives are left out.
func TestRankErrorsOfThisLife(t *testing.T) {
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
	w := &Wrapped{Trouble: func(err error) { t.Error(err) }}
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
		var told []error
		w := &Wrapped{Free: free, Trouble: func(err error) { told = append(told, err) },
			list: func() ([]nvml.GPU, error) { return []nvml.GPU{{Total: 8 * memory.GiB, Free: memory.GiB}}, nil }}
		err := w.gate(ctx)
		if errors.Is(err, harness.ErrInterrupted) != waits || (err != nil) != waits || (len(told) == 1) != waits {
			t.Errorf("%v: %v, told %q", free, err, told)
		}
	}
}
