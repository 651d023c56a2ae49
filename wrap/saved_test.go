package wrap

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"headroom/wrap/checkpoints"
	"headroom/wrap/command"
	"headroom/wrap/profile"
	"headroom/wrap/rewrite"
)

// TestListed checks that what is there when a run begins is not of the run, whatever its time,
// until it is written again; that this is kept for a later process; and that a checkpoint that
// was rejected is chosen again unless it was the reason for a failure.
func TestListed(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string, at time.Time) {
		t.Helper()
		name = filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(name, at, at); err != nil {
			t.Fatal(err)
		}
	}
	ahead := time.Now().Add(24 * time.Hour)
	write("out/step-700/w.json", "{}", ahead)
	write("out/step-2/w.json", "{}", ahead)
	m := scriptAt(t, dir, "out/step-*")
	w := begun(t, &Wrapped{Seen: m, Match: m, Line: m.Command, Begun: time.Now()}, "run", func(text string) { t.Error(text) })
	w.list()
	w.attempted, w.ran = true, true
	newest := func(w *Wrapped, want string) *checkpoint {
		t.Helper()
		s, err := w.newest()
		if err != nil || s == nil && want != "" || s != nil && s.Path != want {
			t.Fatalf("%+v, %v, want %s", s, err, want)
		}
		return s
	}
	newest(w, "")
	if kept, err := w.Folder.Known(); err != nil || len(kept.Before) != 2 {
		t.Errorf("kept %+v, %v", kept, err)
	}
	write("out/step-2/w.json", "{}", ahead.Add(time.Second))
	write("out/step-4/w.json", "{}", ahead.Add(-time.Hour))
	four := newest(w, "out/step-4")
	if len(w.skipped) != 1 || w.skipped[0] != "not used: out/step-700: there before this run began" {
		t.Errorf("%q", w.skipped)
	}

	w.reject(four)
	newest(w, "out/step-2")
	w.judge(false)
	newest(w, "out/step-4")
	w.reject(four)
	w.judge(true)
	two := newest(w, "out/step-2")

	later := &Wrapped{Seen: m, Match: m, Line: m.Command, Folder: w.Folder}
	if err := later.Recall(); err != nil {
		t.Fatal(err)
	}
	later.Begun = w.Begun
	newest(later, "out/step-2")
	if !later.wrote(two) {
		t.Error("a later process does not know what an earlier one has seen")
	}
	write("out/step-2/w.json", "{ }", ahead)
	if changed := newest(later, "out/step-2"); later.wrote(changed) {
		t.Error("it has been written to since")
	}
	write("out/step-4/w.json", "{ }", ahead)
	newest(later, "out/step-4")
}

// TestMost checks what the largest number of a checkpoint can be, and that nothing is concluded where
// the numbers may not be those of steps.
func TestMost(t *testing.T) {
	for _, c := range []struct {
		name string
		unit profile.Unit
		base int
		made int
		want int64
	}{
		{"from the beginning", profile.Steps, 0, 10, 120},
		{"resumed", profile.Steps, 50, 10, 170},
		{"it is not known from where", profile.Steps, -1, 10, 0},
		{"nothing made yet", profile.Steps, 0, 0, 0},
		{"not known how many", profile.Steps, 0, -1, 0},
		{"samples are counted", profile.Samples, 0, 10, 0},
		{"the unit is not known", "", 0, 10, 0},
	} {
		w := Wrapped{Match: &rewrite.Match{Profile: profile.Profile{Unit: c.unit}}, base: c.base, Inside: &seenInside{steps: c.made}}
		if got := w.most(); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
	}
	if got := (&Wrapped{Match: &rewrite.Match{Profile: profile.Profile{Unit: profile.Steps}}}).most(); got != 0 {
		t.Errorf("nobody tells: %d", got)
	}
}

// TestJoined checks which checkpoints a run uses after another run has begun to write to the
// same place.
func TestJoined(t *testing.T) {
	dir := t.TempDir()
	write := func(name string) {
		t.Helper()
		old := time.Now().Add(-checkpoints.Settled)
		if err := errors.Join(os.WriteFile(filepath.Join(dir, name), []byte("{}"), 0o600), os.Chtimes(filepath.Join(dir, name), old, old)); err != nil {
			t.Fatal(err)
		}
	}
	m := scriptAt(t, dir, "s-*.json")
	w := begun(t, &Wrapped{Seen: m, Match: m, Line: m.Command, Begun: time.Now().Add(-time.Hour)}, "run", func(text string) { t.Error(text) })
	w.list()
	w.attempted, w.ran, w.decides = true, true, true
	write("s-1.json")
	w.joined("another headroom run (x, process 1)")
	write("s-2.json")
	w.joined("a third one")
	s, err := w.newest()
	if err != nil || s == nil || s.Path != "s-1.json" || s.Perhaps {
		t.Errorf("%+v, %v", s, err)
	}
	if why := strings.Join(w.skipped, "; "); why != "not used: s-2.json: perhaps written by another headroom run (x, process 1), which keeps its checkpoints in the same place" {
		t.Error(why)
	}
	later := &Wrapped{Seen: m, Match: m, Line: m.Command, Folder: w.Folder}
	if err := later.Recall(); err != nil {
		t.Fatal(err)
	}
	later.Begun = w.Begun
	if s, err := later.newest(); err != nil || s == nil || s.Path != "s-1.json" {
		t.Errorf("later: %+v, %v", s, err)
	}
	write("s-3.json")
	if s, err := later.newest(); err != nil || s == nil || s.Path != "s-3.json" {
		t.Errorf("saved later: %+v, %v", s, err)
	}
	if err := errors.Join(os.Remove(filepath.Join(dir, "s-1.json"))); err != nil {
		t.Fatal(err)
	}
	s, err = w.newest()
	if err != nil || s == nil || !s.Perhaps {
		t.Fatalf("no other is left: %+v, %v", s, err)
	}
	asked, err := rewrite.Asks(m)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.prepare(asked.Plan, s); err == nil || !strings.Contains(err.Error(), "cannot resume: s-3.json: perhaps written by another") {
		t.Error(err)
	}
}

// scriptAt recognises a script that keeps its checkpoints at the pattern, seen from dir.
func scriptAt(t *testing.T, dir, pattern string) *rewrite.Match {
	t.Helper()
	c := command.Line{Args: []string{"python", "t.py", "--bs", "8", "--acc", "1"}, Dir: dir}
	m, err := rewrite.Recognise(c, nil, rewrite.Given{Files: os.DirFS("/"), World: 1, Knobs: []string{"micro=--bs", "accumulation=--acc", "resume=--resume", "checkpoints=" + pattern}})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// TestNewestNeedsAFolder checks that a command can be run although the folder of its
// checkpoints is not known.
func TestNewestNeedsAFolder(t *testing.T) {
	m := &rewrite.Match{Profile: profile.Profile{Knobs: map[string]profile.Knob{"save": {Flags: []string{"--save"}}}, Checkpoints: profile.Layout{Root: "{save}", Glob: "iter_*"}}}
	if _, err := checkpoints.NamesOf(m); err == nil {
		t.Fatal("the folder is known")
	}
	w := Wrapped{Match: m}
	if saved, err := w.newest(); saved != nil || err != nil {
		t.Errorf("%v, %v", saved, err)
	}
}
