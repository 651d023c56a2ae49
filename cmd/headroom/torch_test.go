package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"headroom/recovery"
	"headroom/runs"
)

// made is what a script under test reports about one optimizer step.
type made struct {
	Step    int     `json:"step"`
	First   int     `json:"first"`
	Samples int     `json:"samples"`
	Micro   int     `json:"micro"`
	LR      float64 `json:"lr"`
	Loss    float64 `json:"loss"`
}

// pythonWithTorch returns the path of the Python interpreter in the environment that make torch
// builds. If there is none, it skips the test, or fails it if HEADROOM_REQUIRE_TORCH is 1.
func pythonWithTorch(t *testing.T) string {
	t.Helper()
	return installed(t, "HEADROOM_PYTHON", "make torch", "no PyTorch: make torch builds an environment for this test")
}

// installed returns what the environment variable names that a target of make provides. If it is not
// set, installed skips the test for the given reason, or fails it if HEADROOM_REQUIRE_TORCH is 1.
func installed(t *testing.T, variable, target, reason string) string {
	t.Helper()
	path := os.Getenv(variable)
	if path == "" {
		if os.Getenv("HEADROOM_REQUIRE_TORCH") == "1" {
			t.Fatalf("%s is not set: %s, then make test", variable, target)
		}
		t.Skip("SKIPPED: " + reason)
	}
	return path
}

// scripts returns the path of the folder with the scripts that the tests wrap.
func scripts(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs(filepath.Join("..", "..", "wrap", "testdata", "torch"))
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// stepsOf returns the steps that a script recorded in the file at path. A step that was run again
// replaces its earlier record and all that followed it; redone counts the replaced records.
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

// limited returns a command that runs words in a shell. Each process may hold at most kib KiB of
// data.
func limited(kib int, words ...string) *exec.Cmd {
	quoted := make([]string, len(words))
	for i, w := range words {
		quoted[i] = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
	}
	command := exec.Command("sh", "-c", fmt.Sprintf("ulimit -d %d && exec %s", kib, strings.Join(quoted, " ")))
	command.Env = append(os.Environ(), "MALLOC_ARENA_MAX=1", "OMP_NUM_THREADS=1", "TOKENIZERS_PARALLELISM=false")
	return command
}

// begun starts a command that has plenty of memory, and returns a function that waits for it to
// succeed. Until it calls that function, the test can run the wrapped command, whose results it
// then compares with those of the first.
func begun(t *testing.T, command *exec.Cmd) func(t *testing.T) {
	t.Helper()
	var said bytes.Buffer
	command.Stdout, command.Stderr = &said, &said
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	end := sync.OnceValue(command.Wait)
	t.Cleanup(func() { _ = end() }) // before its folder is removed
	return func(t *testing.T) {
		t.Helper()
		if err := end(); err != nil {
			t.Fatalf("with room: %v\n%s", err, withErrorsFirst(said.Bytes()))
		}
	}
}

// withErrorsFirst returns the output of a wrapped training run, preceded by a copy of the lines
// that say why the run ended: headroom's own lines and the exceptions. They come first because
// the log of a test may be cut off.
func withErrorsFirst(said []byte) []byte {
	var first []byte
	for line := range bytes.Lines(said) {
		if bytes.Contains(line, []byte("headroom: ")) || errorLine.Match(line) {
			first = append(first, line...)
		}
	}
	return slices.Concat(first, []byte("---\n"), said)
}

var errorLine = regexp.MustCompile(`^[\w.]*(Error|Exception)\b`)

// TestTorchRunsOutOfMemory wraps real training scripts that know nothing of headroom, in so
// little memory that PyTorch's own allocator fails. Each must exit with 0, and its steps must
// be those of a run that had enough memory: the same number of samples from the same place in
// the data, at the same learning rate, with losses that differ only by rounding.
func TestTorchRunsOutOfMemory(t *testing.T) {
	python, dir := pythonWithTorch(t), scripts(t)
	for _, c := range []struct {
		name    string
		kib     int
		ours    []string // headroom's own flags
		command []string // {out} stands for the output folder
		micro   int      // largest micro-batch at the end
		resumed bool     // the last attempt must continue from a checkpoint
		remedy  recovery.Remedy
	}{
		{"a plain script, too large from the start", 1_300_000, []string{"--profile", filepath.Join(dir, "plain.yaml")},
			[]string{filepath.Join(dir, "plain.py"), "--batch-size", "8192", "--width", "8192", "--steps", "6", "--save-every", "2", "--output-dir", "{out}"}, 4096, false, recovery.Shrink},
		{"a plain script, one step that needs more", 1_250_000, []string{"--profile", filepath.Join(dir, "plain.yaml")},
			[]string{filepath.Join(dir, "plain.py"), "--batch-size", "256", "--width", "4096", "--long-step", "6", "--steps", "8", "--save-every", "2", "--output-dir", "{out}"}, 128, true, recovery.Shrink},
		{"a plain script, one step that needs more, and then the checkpoint", 1_250_000, []string{"--profile", filepath.Join(dir, "plain.yaml")},
			[]string{filepath.Join(dir, "plain.py"), "--batch-size", "256", "--width", "4096", "--long-step", "6", "--steps", "8", "--save-every", "2", "--output-dir", "{out}",
				"--resume-copies", "4000"}, 128, true, recovery.Relaunch},
		{"Transformers", 1_250_000, nil,
			[]string{filepath.Join(dir, "hf.py"), "--output_dir", "{out}", "--max_steps", "4", "--save_steps", "2", "--logging_steps", "1", "--use_cpu",
				"--report_to", "none", "--disable_tqdm", "true", "--dataloader_pin_memory", "false", "--per_device_train_batch_size", "256"}, 128, false, recovery.Shrink},
		{"Lightning, one epoch that needs more", 1_400_000, []string{"--trust"},
			[]string{filepath.Join(dir, "lit.py"), "fit", "--config", filepath.Join(dir, "lit.yaml"), "--trainer.default_root_dir", "{out}"}, 128, true, recovery.Shrink},
		{"Lightning, too large from the start", 1_400_000, nil,
			[]string{filepath.Join(dir, "lit.py"), "fit", "--config", filepath.Join(dir, "lit.yaml"), "--trainer.default_root_dir", "{out}",
				"--model.long_epoch", "0", "--trainer.max_steps", "2"}, 128, false, recovery.Shrink},
		{"nanoGPT's shape, one step that needs more", 1_150_000, nil,
			[]string{filepath.Join(dir, "nano.py"), filepath.Join(dir, "nano_small.py"), "--out_dir={out}", "--long_iter=5"}, 32, true, recovery.Shrink},
		{"Accelerate, rows that need more", 1_400_000,
			[]string{"--trust", "--knob", "micro=--batch-size", "--knob", "accumulation=--accum", "--knob", "resume=--resume", "--knob", "checkpoints=tight/step_*"},
			[]string{"-m", "accelerate.commands.launch", "--cpu", "--num_processes", "1", filepath.Join(dir, "acc.py"), "--width", "4096", "--batch-size", "256",
				"--long-from", "1024", "--output-dir", "{out}"}, 128, true, recovery.Shrink},
		{"Transformers, in evaluation", 1_250_000, nil,
			[]string{filepath.Join(dir, "hf.py"), "--output_dir", "{out}", "--max_steps", "4", "--save_steps", "2", "--logging_steps", "1", "--use_cpu",
				"--report_to", "none", "--disable_tqdm", "true", "--dataloader_pin_memory", "false", "--per_device_train_batch_size", "4",
				"--eval_rows", "1024", "--eval_strategy", "steps", "--eval_steps", "3", "--per_device_eval_batch_size", "1024"}, 4, true, recovery.ShrinkEval},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Chdir(t.TempDir())
			words := func(out string) []string {
				return strings.Split(strings.ReplaceAll(strings.Join(append([]string{python}, c.command...), "\x00"), "{out}", out), "\x00")
			}
			free := begun(t, limited(16<<20, words("free")...))
			wrapped := append(append([]string{"headroom", "run", "--no-worker", "--name", "night"}, c.ours...), append([]string{"--"}, words("tight")...)...)
			said, err := limited(c.kib, wrapped...).CombinedOutput()
			if err != nil {
				t.Fatalf("wrapped: %v\n%s", err, withErrorsFirst(said))
			}
			free(t)
			want, _ := stepsOf(t, filepath.Join("free", "steps.jsonl"))
			got, _ := stepsOf(t, filepath.Join("tight", "steps.jsonl"))
			sameSteps(t, got, want)
			if last := got[len(got)-1]; last.Micro > c.micro {
				t.Errorf("ended with micro-batch %d, more than %d", last.Micro, c.micro)
			}
			from, remedy := checkNight(t, string(said))
			if resumed := from > 0 || got[0].Micro != got[len(got)-1].Micro; c.resumed && !resumed { // where memory is tight, the other cases may fail late too
				t.Errorf("it began again from the start: %+v", got)
			}
			if remedy != c.remedy {
				t.Errorf("%s, want %s\n%s", remedy, c.remedy, said)
			}
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

// checkNight checks the journal and the status of the run named night. It returns the
// step from which the last attempt continued, if the name of the checkpoint says which
// step that is, and the last remedy.
func checkNight(t *testing.T, said string) (from int, remedy recovery.Remedy) {
	t.Helper()
	dir := filepath.Join("runs", "night")
	entries, err := runs.ReadJournal(dir)
	if err != nil {
		t.Fatal(err)
	}
	attempts, failures := 0, 0
	for _, e := range entries {
		switch e.Kind {
		case runs.KindAttempt:
			attempts, from = attempts+1, e.Step
		case runs.KindOOM:
			failures++
		case runs.KindDecision:
			remedy = e.Decision.Remedy
		}
	}
	if failures == 0 || attempts != failures+1 {
		t.Errorf("%d failures, %d attempts\n%s", failures, attempts, said)
	}
	if s, err := runs.ReadStatus(dir); err != nil || s.State != runs.StateDone || s.Failures != failures {
		t.Errorf("status %+v, %v", s, err)
	}
	return from, remedy
}

// TestTorchRunsOutOfMemorySaving checks that a script without enough memory to save ends
// as it would without headroom: no smaller batch is tried, nothing is started again, and
// headroom's message is about saving.
func TestTorchRunsOutOfMemorySaving(t *testing.T) {
	python, dir := pythonWithTorch(t), scripts(t)
	t.Chdir(t.TempDir())
	said, err := limited(1_500_000, "headroom", "run", "--no-worker", "--name", "night", "--profile", filepath.Join(dir, "plain.yaml"), "--", python, filepath.Join(dir, "plain.py"),
		"--width", "2000000", "--steps", "4", "--save-every", "2", "--batch-size", "4", "--output-dir", "out", "--save-in-memory").CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 1 {
		t.Fatalf("%v\n%s", err, said)
	}
	steps, redone := stepsOf(t, filepath.Join("out", "steps.jsonl"))
	_, own, _ := strings.Cut(string(said), "headroom: ")
	if len(steps) != 2 || redone != 0 || !strings.Contains(own, "saving assembles the weights") || strings.Contains(own, "micro-batch 4") {
		t.Errorf("%d steps, %d of them twice\n%s", len(steps), redone, said)
	}
	entries, err := runs.ReadJournal(filepath.Join("runs", "night"))
	if err != nil {
		t.Fatal(err)
	}
	stops := 0
	for _, e := range entries {
		if e.Kind == runs.KindDecision && e.Decision.Remedy == recovery.Stop && strings.Contains(e.Decision.Hint, "saving assembles the weights") {
			stops++
		} else if e.Attempt > 1 || e.Kind == runs.KindDecision || e.Kind == runs.KindRemedy {
			t.Errorf("%+v", e)
		}
	}
	if stops != 1 {
		t.Errorf("the journal says %d times why it stops", stops)
	}
}
