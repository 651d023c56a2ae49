package harness

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

func mustOpen(t *testing.T, dir string) *Folder {
	t.Helper()
	f, err := OpenFolder(dir)
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
		{"photos", "it holds cat.jpg and no run"},
	} {
		before := tree(t, root)
		_, err := OpenFolder(filepath.Join(root, test.dir))
		if err == nil || !strings.Contains(err.Error(), test.want) || !strings.HasPrefix(err.Error(), "open run folder "+root) {
			t.Errorf("%s: %v", test.dir, err)
		}
		if _, err := SetAside(filepath.Join(root, test.dir)); test.dir == "photos" && err == nil {
			t.Error("a folder that is no run was set aside")
		}
		if after := tree(t, root); after != before {
			t.Errorf("%s: something was changed:\n%s", test.dir, after)
		}
	}
}

func TestOpenFolderReadOnly(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	refuse := &faulty{disk: osDisk{}, fail: func(int, string) error { return fs.ErrPermission }}
	if _, err := openFolder(dir, refuse); !errors.Is(err, fs.ErrPermission) || !strings.HasPrefix(err.Error(), "open run folder "+dir) {
		t.Error(err)
	}
	if os.Getuid() == 0 {
		t.Skip("root writes everywhere; the rest needs another user")
	}
	if err := os.Mkdir(dir, 0o555); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenFolder(dir); !errors.Is(err, fs.ErrPermission) || !strings.Contains(err.Error(), "cannot write in it") {
		t.Error(err)
	}
}

func TestFolderIsLocked(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	f := mustOpen(t, dir)
	for _, try := range []func() error{
		func() error { _, err := OpenFolder(dir); return err },
		func() error { _, err := SetAside(dir); return err },
	} {
		err := try()
		var locked *Locked
		if !errors.As(err, &locked) || locked.PID != os.Getpid() || locked.Dir != dir || locked.Started.IsZero() || !strings.Contains(err.Error(), "in use by process") {
			t.Errorf("%v", err)
		}
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if err := mustOpen(t, dir).Close(); err != nil {
		t.Error(err)
	}
}

func TestStatusOfAKilledRunIsStale(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	if _, err := ReadStatus(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	f := mustOpen(t, dir)
	want := Status{State: StateRunning, Step: 7, Steps: 9, Plan: plan64, Loss: 0.5}
	if err := f.SetStatus(want); err != nil {
		t.Fatal(err)
	}
	if got, err := ReadStatus(dir); err != nil || got != want {
		t.Errorf("%+v, %v", got, err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	want.State = StateStale
	if got, err := ReadStatus(dir); err != nil || got != want {
		t.Errorf("%+v, %v", got, err)
	}
	mustWrite(t, filepath.Join(dir, "status.json"), "{")
	if _, err := ReadStatus(dir); err == nil {
		t.Error("half a status was read")
	}
}

func TestSetAside(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	if to, err := SetAside(dir); to != "" || err != nil {
		t.Errorf("nothing to set aside: %q, %v", to, err)
	}
	for _, want := range []string{dir + ".1", dir + ".2"} {
		f := mustOpen(t, dir)
		if err := errors.Join(f.SetConfig([]byte(want)), f.Close()); err != nil {
			t.Fatal(err)
		}
		if to, err := SetAside(dir + "/"); to != want || err != nil {
			t.Errorf("%q, %v; want %q", to, err, want)
		}
		if text, err := os.ReadFile(filepath.Join(want, "run.yaml")); err != nil || string(text) != want {
			t.Errorf("%q, %v", text, err)
		}
	}
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Error("the folder is still there")
	}
}

func TestConfig(t *testing.T) {
	f := mustOpen(t, filepath.Join(t.TempDir(), "run"))
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	if _, err := f.Config(); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	for _, want := range []string{"a: 1\n", "b: 2\n"} {
		if err := f.SetConfig([]byte(want)); err != nil {
			t.Fatal(err)
		}
		if got, err := f.Config(); err != nil || string(got) != want {
			t.Errorf("%q, %v", got, err)
		}
	}
}

// Cut journal and metrics at every byte: what a reader sees, and what the next
// run goes on with, is every whole line before the cut.
func TestTornLines(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	for _, name := range []string{"journal.jsonl", "metrics.jsonl"} {
		f, err := openFolder(dir, fast{})
		if err != nil {
			t.Fatal(err)
		}
		for i := range 3 {
			e := Entry{Kind: KindDecision, Attempt: i + 1, Text: "a \"b\"\n\u2192 c"}
			if err := errors.Join(f.Record(e), f.AddStep(StepReport{Step: i + 1, Splits: []int{3, 2}})); err != nil {
				t.Fatal(err)
			}
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		whole, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		for cut := range len(whole) + 1 {
			checkTorn(t, dir, name, whole[:cut])
		}
		remove(t, dir)
	}
}

func checkTorn(t *testing.T, dir, name string, text []byte) {
	t.Helper()
	mustWrite(t, filepath.Join(dir, name), string(text))
	torn := len(text) > 0 && text[len(text)-1] != '\n'
	want := bytes.Count(text, []byte("\n"))
	checkLines(t, dir, name, want, torn)
	if len(text)%17 > 1 && torn {
		return // opening is slow and does not depend on where in a line the cut is
	}
	f, err := openFolder(dir, fast{})
	if err != nil {
		t.Fatal(err)
	}
	if repaired := len(f.takeRepairs()) > 0; repaired != torn {
		t.Fatalf("%s cut at %d: repaired %v", name, len(text), repaired)
	}
	if err := errors.Join(f.Record(Entry{Kind: KindRun}), f.AddStep(StepReport{Step: 9}), f.Close()); err != nil {
		t.Fatal(err)
	}
	checkLines(t, dir, name, want+1, false)
}

func checkLines(t *testing.T, dir, name string, want int, torn bool) {
	t.Helper()
	var n int
	var err error
	if name == "metrics.jsonl" {
		all, readErr := ReadMetrics(dir)
		n, err = len(all), readErr
	} else {
		all, readErr := ReadJournal(dir)
		n, err = len(all), readErr
	}
	var told *Torn
	if n != want || errors.As(err, &told) != torn || !torn && err != nil {
		t.Fatalf("%s: %d lines, want %d: %v", name, n, want, err)
	}
	if torn && (told.File != name || !slices.Equal(told.Lines, []int{want + 1})) {
		t.Fatalf("%s: told %+v", name, told)
	}
}

// Damage further up costs the damaged lines alone, and opening leaves them.
func TestDamagedLine(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	if err := mustOpen(t, dir).Close(); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "metrics.jsonl")
	mustWrite(t, path, "{\"step\":1}\n\x00\x00\x00\n{\"step\":3}\nnot json\n")
	steps, err := ReadMetrics(dir)
	var torn *Torn
	if !errors.As(err, &torn) || !slices.Equal(torn.Lines, []int{2, 4}) || len(steps) != 2 || steps[1].Step != 3 {
		t.Errorf("%+v, %v", steps, err)
	}
	f := mustOpen(t, dir)
	if err := errors.Join(f.CutMetrics(2), f.Close()); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(path); err != nil || string(text) != "{\"step\":1}\n\x00\x00\x00\n" {
		t.Errorf("%q, %v", text, err)
	}
}

// Readers see whole lines only, and more and more of them, while a run writes.
func TestReadWhileRunning(t *testing.T) {
	j := newJourney(t, plan64.WithMicro(16), 30)
	clock := time.Unix(0, 0)
	j.options.Now = func() time.Time { clock = clock.Add(400 * time.Millisecond); return clock }
	seen := 0
	j.options.BeforeStep = func(finished int) {
		steps, err := ReadMetrics(j.dir)
		if err != nil || len(steps) < seen || len(steps) > finished || finished-len(steps) > 3 {
			t.Errorf("after step %d a reader sees %d: %v", finished, len(steps), err)
		}
		seen = len(steps)
		s, err := ReadStatus(j.dir)
		if err != nil || s.State != StateRunning || finished-s.Step > 3 || finished > 3 && (s.SamplesPerSecond != 160 || s.Capacity != 24<<30) {
			t.Errorf("after step %d the status is %+v: %v", finished, s, err)
		}
		if entries, err := ReadJournal(j.dir); err != nil || len(entries) != len(j.entries) {
			t.Errorf("a reader sees %d of %d entries: %v", len(entries), len(j.entries), err)
		}
	}
	j.mustRun()
	if s, err := ReadStatus(j.dir); err != nil || s.State != StateDone || s.Step != 30 || s.Loss == 0 || s.Plan != j.options.Plan {
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
			if j.entries[0].Kind != KindDamaged || !strings.Contains(j.entries[0].Text, "damaged-step-000006: ") {
				t.Errorf("first entry %+v", j.entries[0])
			}
			if _, err := os.Stat(filepath.Join(j.dir, "checkpoints", "damaged-step-000006")); err != nil {
				t.Error(err)
			}
			j.account(6)
		})
	}
}

func remove(t *testing.T, path string) {
	t.Helper()
	if err := os.RemoveAll(path); err != nil {
		t.Fatal(err)
	}
}

// What the user can mend is no damage: an older checkpoint would lose work.
func TestReadErrorsThatAreDamage(t *testing.T) {
	for cause, want := range map[error]bool{fs.ErrNotExist: true, syscall.EIO: true, fs.ErrPermission: false, syscall.EMFILE: false} {
		found := (*damage)(nil)
		if got := errors.As(readError("meta.json", &fs.PathError{Op: "open", Path: "meta.json", Err: cause}), &found); got != want {
			t.Errorf("%v: damage %v, want %v", cause, got, want)
		}
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
	var c Checkpoint
	text, err := os.ReadFile(path)
	if err != nil || json.Unmarshal(text, &c) != nil {
		t.Fatal(err)
	}
	if c.Step != 3 || c.Samples != 192 || c.Attempt != 1 || c.Plan != j.options.Plan || len(c.SHA256) != 64 || c.Time.IsZero() {
		t.Errorf("meta %+v", c)
	}
	c.Version = checkpointVersion + 1
	text, _ = json.Marshal(c)
	mustWrite(t, path, string(text))
	if _, err := j.run(context.Background()); err == nil || !strings.Contains(err.Error(), "use a newer one") {
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
