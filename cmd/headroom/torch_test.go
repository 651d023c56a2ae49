package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"headroom/runs"
)

// made is what a script under test says of one optimizer step.
type made struct {
	Step    int     `json:"step"`
	First   int     `json:"first"`
	Samples int     `json:"samples"`
	Micro   int     `json:"micro"`
	LR      float64 `json:"lr"`
	Loss    float64 `json:"loss"`
}

// pythonWithTorch is the interpreter of the environment that make torch builds.
func pythonWithTorch(t *testing.T) string {
	t.Helper()
	path := os.Getenv("HEADROOM_PYTHON")
	if path == "" {
		if os.Getenv("HEADROOM_REQUIRE_TORCH") == "1" {
			t.Fatal("HEADROOM_PYTHON is not set: make torch, then make test")
		}
		t.Skip("SKIPPED: no PyTorch: make torch builds an environment for this test")
	}
	return path
}

// scripts is the folder of the scripts that are wrapped, from the package's own.
func scripts(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs(filepath.Join("..", "..", "wrap", "testdata", "torch"))
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// stepsOf are the steps that stand: of one made more than once the last one counts.
func stepsOf(t *testing.T, path string) (steps []made, redone int) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }() // only read
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var m made
		if err := json.Unmarshal(lines.Bytes(), &m); err != nil {
			t.Fatal(err)
		}
		for len(steps) > 0 && steps[len(steps)-1].Step >= m.Step {
			steps = steps[:len(steps)-1]
			redone++
		}
		steps = append(steps, m)
	}
	return steps, redone
}

// limited runs a command line in a shell whose processes may hold so many bytes.
func limited(kib int, words ...string) *exec.Cmd {
	quoted := make([]string, len(words))
	for i, w := range words {
		quoted[i] = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
	}
	command := exec.Command("sh", "-c", fmt.Sprintf("ulimit -d %d && exec %s", kib, strings.Join(quoted, " ")))
	command.Env = append(os.Environ(), "MALLOC_ARENA_MAX=1", "OMP_NUM_THREADS=1", "TOKENIZERS_PARALLELISM=false")
	return command
}

// TestTorchRunsOutOfMemory wraps real training scripts that know nothing of
// headroom, in so little memory that PyTorch's own allocator fails: each ends with 0,
// and its steps are those of a run that had room: as many samples, from the same
// place, at the same learning rate, with losses that differ by rounding.
func TestTorchRunsOutOfMemory(t *testing.T) {
	python, dir := pythonWithTorch(t), scripts(t)
	for _, c := range []struct {
		name    string
		kib     int
		ours    []string // headroom's own flags
		command []string // {out} stands for the output folder
		micro   int      // largest micro-batch at the end
		resumed bool     // the last life must go on from a checkpoint
	}{
		{"a plain script, too large from the start", 1_200_000, []string{"--profile", filepath.Join(dir, "plain.yaml")},
			[]string{filepath.Join(dir, "plain.py"), "--batch-size", "8192", "--width", "8192", "--steps", "6", "--save-every", "2", "--output-dir", "{out}"}, 4096, false},
		{"a plain script, one step that needs more", 1_250_000, []string{"--profile", filepath.Join(dir, "plain.yaml")},
			[]string{filepath.Join(dir, "plain.py"), "--batch-size", "256", "--width", "4096", "--long-step", "6", "--steps", "8", "--save-every", "2", "--output-dir", "{out}"}, 128, true},
		{"Transformers", 1_250_000, nil,
			[]string{filepath.Join(dir, "hf.py"), "--output_dir", "{out}", "--max_steps", "4", "--save_steps", "2", "--logging_steps", "1", "--use_cpu",
				"--report_to", "none", "--disable_tqdm", "true", "--dataloader_pin_memory", "false", "--per_device_train_batch_size", "256"}, 128, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Chdir(t.TempDir())
			words := func(out string) []string {
				return strings.Split(strings.ReplaceAll(strings.Join(append([]string{python}, c.command...), "\x00"), "{out}", out), "\x00")
			}
			if said, err := limited(16<<20, words("free")...).CombinedOutput(); err != nil {
				t.Fatalf("with room: %v\n%s", err, said)
			}
			wrapped := append(append([]string{"headroom", "run", "--name", "night"}, c.ours...), append([]string{"--"}, words("tight")...)...)
			said, err := limited(c.kib, wrapped...).CombinedOutput()
			if err != nil {
				t.Fatalf("wrapped: %v\n%s", err, said)
			}
			want, _ := stepsOf(t, filepath.Join("free", "steps.jsonl"))
			got, _ := stepsOf(t, filepath.Join("tight", "steps.jsonl"))
			sameSteps(t, got, want)
			if last := got[len(got)-1]; last.Micro > c.micro {
				t.Errorf("ended with micro-batch %d, more than %d", last.Micro, c.micro)
			}
			checkNight(t, c.resumed, string(said))
		})
	}
}

func sameSteps(t *testing.T, got, want []made) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%d steps, want %d", len(got), len(want))
	}
	for i, w := range want {
		g := got[i]
		if g.Step != w.Step || g.First != w.First || g.Samples != w.Samples || g.LR != w.LR || math.Abs(g.Loss-w.Loss) > 1e-3*math.Abs(w.Loss) {
			t.Errorf("step %d: %+v, want %+v", i+1, g, w)
		}
	}
}

// checkNight looks at what the run's folder says.
func checkNight(t *testing.T, resumed bool, said string) {
	t.Helper()
	dir := filepath.Join("runs", "night")
	entries, err := runs.ReadJournal(dir)
	if err != nil {
		t.Fatal(err)
	}
	attempts, failures, from := 0, 0, 0
	for _, e := range entries {
		switch e.Kind {
		case runs.KindAttempt:
			attempts, from = attempts+1, e.Step
		case runs.KindOOM:
			failures++
		}
	}
	if failures == 0 || attempts != failures+1 || resumed && from == 0 {
		t.Errorf("%d failures, %d attempts, the last one from step %d\n%s", failures, attempts, from, said)
	}
	if s, err := runs.ReadStatus(dir); err != nil || s.State != runs.StateDone || s.Failures != failures {
		t.Errorf("status %+v, %v", s, err)
	}
}
