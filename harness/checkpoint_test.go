package harness

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"headroom/runs"
)

func TestOpenFolderRefuses(t *testing.T) {
	root := t.TempDir()
	mustWrite(t, filepath.Join(root, "file"), "x")
	if err := os.Mkdir(filepath.Join(root, "photos"), 0o755); err != nil {
		t.Fatal(err)
	}
	mustWrite(t, filepath.Join(root, "photos", "cat.jpg"), "x")
	for _, test := range []struct{ dir, want string }{
		{"file", "it is a file"},
		{"missing/run", "there is no folder " + filepath.Join(root, "missing")},
		{"file/run", "not a directory"},
		{"photos", "it holds cat.jpg but no run"},
	} {
		before := tree(t, root)
		_, err := runs.Open(filepath.Join(root, test.dir))
		if err == nil || !strings.Contains(err.Error(), test.want) || !strings.HasPrefix(err.Error(), "open run folder "+root) {
			t.Errorf("%s: %v", test.dir, err)
		}
		if _, err := runs.SetAside(filepath.Join(root, test.dir)); test.dir == "photos" && err == nil {
			t.Error("a folder that is no run was set aside")
		}
		if after := tree(t, root); after != before {
			t.Errorf("%s: something was changed:\n%s", test.dir, after)
		}
	}
}

func TestStatusOfAKilledRunIsStale(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	if _, err := runs.ReadStatus(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	f := mustOpen(t, dir)
	want := runs.Status{State: runs.StateRunning, Step: 7, Steps: 9, Plan: plan64, Loss: 0.5}
	if err := f.SetStatus(want); err != nil {
		t.Fatal(err)
	}
	if got, err := runs.ReadStatus(dir); err != nil || got != want {
		t.Errorf("%+v, %v", got, err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	want.State = runs.StateStale
	if got, err := runs.ReadStatus(dir); err != nil || got != want {
		t.Errorf("%+v, %v", got, err)
	}
	mustWrite(t, filepath.Join(dir, "status.json"), "{")
	if _, err := runs.ReadStatus(dir); err == nil {
		t.Error("half a status was read")
	}
}

// TestReadWhileRunning checks that readers of a live run see only whole lines, and that the
// lines and the status lag only a few steps behind the run.
func TestReadWhileRunning(t *testing.T) {
	j := newJourney(t, plan64.WithMicro(16), 30)
	clock := time.Unix(0, 0)
	j.options.Now = func() time.Time { clock = clock.Add(400 * time.Millisecond); return clock }
	seen := 0
	j.options.BeforeStep = func(finished int) {
		steps, err := runs.ReadMetrics(j.dir)
		if err != nil || len(steps) < seen || len(steps) > finished || finished-len(steps) > 3 {
			t.Errorf("after step %d a reader sees %d: %v", finished, len(steps), err)
		}
		seen = len(steps)
		s, err := runs.ReadStatus(j.dir)
		if err != nil || s.State != runs.StateRunning || finished-s.Step > 3 || finished > 3 && (s.SamplesPerSecond != 160 || s.Capacity != 24<<30) {
			t.Errorf("after step %d the status is %+v: %v", finished, s, err)
		}
		if entries, err := runs.ReadJournal(j.dir); err != nil || len(entries) != len(j.entries) {
			t.Errorf("a reader sees %d of %d entries: %v", len(entries), len(j.entries), err)
		}
	}
	j.mustRun()
	if s, err := runs.ReadStatus(j.dir); err != nil || s.State != runs.StateDone || s.Step != 30 || s.Loss == 0 || s.Plan != j.options.Plan {
		t.Errorf("%+v, %v", s, err)
	}
}

func TestCheckpointDamage(t *testing.T) {
	for name, damage := range map[string]func(t *testing.T, dir string){
		"a flipped bit": func(t *testing.T, dir string) {
			text, err := os.ReadFile(filepath.Join(dir, "state.safetensors"))
			if err != nil {
				t.Fatal(err)
			}
			text[len(text)/2] ^= 1
			mustWrite(t, filepath.Join(dir, "state.safetensors"), string(text))
		},
		"a cut state": func(t *testing.T, dir string) {
			if err := os.Truncate(filepath.Join(dir, "state.safetensors"), 10); err != nil {
				t.Fatal(err)
			}
		},
		"no state": func(t *testing.T, dir string) { remove(t, filepath.Join(dir, "state.safetensors")) },
		"no meta":  func(t *testing.T, dir string) { remove(t, filepath.Join(dir, "meta.json")) },
		"half a meta": func(t *testing.T, dir string) {
			mustWrite(t, filepath.Join(dir, "meta.json"), `{"version":1,"st`)
		},
		"another step's meta": func(t *testing.T, dir string) {
			text, err := os.ReadFile(filepath.Join(dir, "meta.json"))
			if err != nil {
				t.Fatal(err)
			}
			mustWrite(t, filepath.Join(dir, "meta.json"), strings.Replace(string(text), `"step": 6`, `"step": 5`, 1))
		},
		"a file in its place": func(t *testing.T, dir string) { remove(t, dir); mustWrite(t, dir, "x") },
	} {
		t.Run(name, func(t *testing.T) {
			j := newJourney(t, plan64.WithMicro(16), 6)
			j.options.CheckpointEvery = 2
			j.mustRun()
			damage(t, filepath.Join(j.dir, "checkpoints", "step-000006"))
			j.entries = nil
			if result := j.mustRun(); result.Resumed != 4 || !result.Finished {
				t.Errorf("%+v", result)
			}
			if j.entries[0].Kind != runs.KindDamaged || !strings.Contains(j.entries[0].Text, "damaged-step-000006: ") {
				t.Errorf("first entry %+v", j.entries[0])
			}
			if _, err := os.Stat(filepath.Join(j.dir, "checkpoints", "damaged-step-000006")); err != nil {
				t.Error(err)
			}
			j.account(6)
		})
	}
}

func TestAllCheckpointsDamaged(t *testing.T) {
	j := newJourney(t, plan64.WithMicro(16), 6)
	j.options.CheckpointEvery = 2
	j.mustRun()
	for _, name := range []string{"step-000004", "step-000006"} {
		remove(t, filepath.Join(j.dir, "checkpoints", name, "meta.json"))
	}
	if result := j.mustRun(); result.Resumed != 0 || !result.Finished {
		t.Errorf("%+v", result)
	}
	j.account(6)
}

func TestCheckpointOfTheFutureIsNotDamaged(t *testing.T) {
	j := newJourney(t, plan64.WithMicro(16), 3)
	j.mustRun()
	path := filepath.Join(j.dir, "checkpoints", "step-000003", "meta.json")
	var c runs.Checkpoint
	text, err := os.ReadFile(path)
	if err != nil || json.Unmarshal(text, &c) != nil {
		t.Fatal(err)
	}
	if c.Step != 3 || c.Samples != 192 || c.Attempt != 1 || c.Plan != j.options.Plan || len(c.SHA256) != 64 || c.Time.IsZero() {
		t.Errorf("meta %+v", c)
	}
	c.Version = runs.CheckpointVersion + 1
	text, _ = json.Marshal(c)
	mustWrite(t, path, string(text))
	if _, err := j.run(context.Background()); err == nil || !strings.Contains(err.Error(), "update headroom") {
		t.Error(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Error(err)
	}
}

func TestKeepsTheNewestCheckpoints(t *testing.T) {
	j := newJourney(t, plan64.WithMicro(16), 9)
	j.options.CheckpointEvery, j.options.Keep = 2, 3
	j.mustRun()
	held, err := filepath.Glob(filepath.Join(j.dir, "checkpoints", "*"))
	if err != nil {
		t.Fatal(err)
	}
	for i := range held {
		held[i] = filepath.Base(held[i])
	}
	if want := []string{"step-000006", "step-000008", "step-000009"}; !slices.Equal(held, want) {
		t.Errorf("kept %v, want %v", held, want)
	}
	leftovers(t, j.dir)
}

func mustOpen(t *testing.T, dir string) *runs.Folder {
	t.Helper()
	f, err := runs.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func mustWrite(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func remove(t *testing.T, path string) {
	t.Helper()
	if err := os.RemoveAll(path); err != nil {
		t.Fatal(err)
	}
}

// TestFinishedCheckpointOfAnotherRun checks a run whose newest checkpoint was written
// after the last step, but under another configuration. The run counts as finished only
// once its model has loaded that checkpoint.
func TestFinishedCheckpointOfAnotherRun(t *testing.T) {
	j := newJourney(t, plan64.WithMicro(16), 3)
	j.mustRun()
	mustWrite(t, filepath.Join(j.dir, "run.yaml"), "name: another\n")
	loaded := 0
	j.lab.loading = func() error { loaded++; return nil }
	if result := j.mustRun(); !result.Finished || loaded != 1 {
		t.Errorf("of the same model: %+v, loaded %d times", result, loaded)
	}
	j.lab.loading = func() error { return &MismatchError{Key: "model.width", Have: "8", Want: "64"} }
	var mismatch *MismatchError
	if result, err := j.run(context.Background()); !errors.As(err, &mismatch) || result.Finished {
		t.Errorf("of another model: %+v, %v", result, err)
	}
}

// TestCheckpointsRemoved checks that a run whose checkpoints are gone says so and starts
// over, and that a live run writes new checkpoints if somebody removes the old ones.
func TestCheckpointsRemoved(t *testing.T) {
	j := newJourney(t, plan64.WithMicro(16), 4)
	j.options.CheckpointEvery = 2
	checkpoints := filepath.Join(j.dir, "checkpoints")
	j.options.BeforeStep = func(finished int) {
		if finished == 3 {
			remove(t, checkpoints)
		}
	}
	j.mustRun()
	if newestOnDisk(t, j.dir) != 4 {
		t.Error("no checkpoint was written after the folder was removed")
	}
	remove(t, checkpoints)
	j.entries, j.options.BeforeStep = nil, nil
	if result := j.mustRun(); result.Resumed != 0 {
		t.Errorf("%+v", result)
	}
	if !slices.ContainsFunc(j.entries, func(e runs.Entry) bool {
		return e.Kind == runs.KindMissing && strings.Contains(e.Text, "a checkpoint of step 4 was written, but no checkpoint is left")
	}) {
		t.Errorf("%s", j.kinds())
	}
	j.account(4)
}

// TestLockTakenAway removes the lock of a live run, so that a second process can open the
// folder. It checks that the first process then ends.
func TestLockTakenAway(t *testing.T) {
	j := newJourney(t, plan64.WithMicro(16), 9)
	clock := time.Unix(1e9, 0)
	j.options.Now = func() time.Time { clock = clock.Add(time.Second); return clock }
	var second *runs.Folder
	j.options.BeforeStep = func(finished int) {
		if finished == 3 {
			remove(t, filepath.Join(j.dir, "lock"))
			second = mustOpen(t, j.dir)
		}
	}
	_, err := j.run(context.Background())
	var locked *runs.LockedError
	if !errors.As(err, &locked) || len(j.lab.samples) > 4 {
		t.Errorf("%v, after %d steps", err, len(j.lab.samples))
	}
	if err := second.StillHeld(); err != nil {
		t.Errorf("the other process: %v", err)
	}
	if err := second.Close(); err != nil {
		t.Error(err)
	}
}

// TestFilesRemovedFromUnderARun checks that a live run whose files are removed continues in
// new files, and reports which ones are missing.
func TestFilesRemovedFromUnderARun(t *testing.T) {
	j := newJourney(t, plan64.WithMicro(16), 9)
	clock := time.Unix(1e9, 0)
	j.options.Now = func() time.Time { clock = clock.Add(time.Second); return clock }
	j.options.BeforeStep = func(finished int) {
		if finished == 3 {
			for _, name := range []string{"journal.jsonl", "metrics.jsonl", "lock"} {
				remove(t, filepath.Join(j.dir, name))
			}
		}
	}
	j.mustRun()
	entries, err := runs.ReadJournal(j.dir)
	if err != nil {
		t.Fatal(err)
	}
	var missing []string
	for _, e := range entries {
		if e.Kind == runs.KindMissing {
			name, _, _ := strings.Cut(e.Text, " ")
			missing = append(missing, name)
		}
	}
	slices.Sort(missing)
	if want := []string{"journal.jsonl", "lock", "metrics.jsonl"}; !slices.Equal(missing, want) {
		t.Errorf("missing are %v, want %v", missing, want)
	}
	if steps, err := runs.ReadMetrics(j.dir); err != nil || len(steps) != 6 || steps[0].Step != 4 {
		t.Errorf("%d steps in the new metrics: %v", len(steps), err)
	}
}
