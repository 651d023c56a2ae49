package wrap

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"headroom/runs"
	"headroom/wrap/profile"
	"headroom/wrap/rewrite"
)

// TestOfThisRun checks which checkpoints count as those of the run, in which order they are
// tried, and what is said about the others.
func TestOfThisRun(t *testing.T) {
	const hour = time.Hour
	old := runs.Mark{Path: "out/s-2.json", Size: 2, Time: start.Add(-hour)}
	ahead := runs.Mark{Path: "out/s-2.json", Size: 2, Time: now.Add(hour)}
	for _, c := range []struct {
		name  string
		files map[string]time.Duration // when each file was last written, from the start of the run
		past  Past
		want  string // newest first; then what is said
	}{
		{"in order", map[string]time.Duration{"s-1": hour, "s-2": 2 * hour}, Past{}, "s-2 s-1"},
		{"the one written last, whatever its number", map[string]time.Duration{"s-1": 2 * hour, "s-2": hour}, Past{}, "s-1 s-2"},
		{"all in the past, with a list of what was there: the number decides", map[string]time.Duration{"s-9": -hour, "s-10": -2 * hour}, Past{Listed: true}, "s-10 s-9"},
		{"all in the future", map[string]time.Duration{"s-9": 200 * hour, "s-10": 100 * hour}, Past{Listed: true}, "s-10 s-9"},
		{"in the past, without a list", map[string]time.Duration{"s-9": -hour}, Past{}, "| not used: out/s-9.json: written before this run began, at "},
		{"a little before, by a coarse clock", map[string]time.Duration{"s-9": -time.Second}, Past{Listed: true}, "s-9"},
		{"there before", map[string]time.Duration{"s-2": -hour, "s-1": hour}, Past{Listed: true, Known: runs.Known{Before: []runs.Mark{old}}},
			"s-1| not used: out/s-2.json: there before this run began"},
		{"there before, by a clock that is ahead", map[string]time.Duration{"s-2": 9 * hour}, Past{Listed: true, Known: runs.Known{Before: []runs.Mark{ahead}}},
			"| not used: out/s-2.json: there before this run began"},
		{"there before, and written again", map[string]time.Duration{"s-2": hour}, Past{Listed: true, Known: runs.Known{Before: []runs.Mark{old}}}, "s-2"},
		{"there before, and older than the newest: not worth a word", map[string]time.Duration{"s-2": -hour, "s-3": hour}, Past{Listed: true, Known: runs.Known{Before: []runs.Mark{old}}}, "s-3"},
		{"copied from elsewhere during the run", map[string]time.Duration{"s-1": hour, "s-900": -hour}, Past{Listed: true}, "s-1| not used: out/s-900.json: its time, "},
		{"copied from a machine whose clock is ahead", map[string]time.Duration{"s-1": hour, "s-900": 50 * hour}, Past{Listed: true}, "s-1| not used: out/s-900.json: its time, "},
		{"resuming from it has failed", map[string]time.Duration{"s-1": hour, "s-2": 2 * hour}, Past{Listed: true, Known: runs.Known{Failed: []runs.Mark{{Path: "out/s-2.json", Size: 2, Time: start.Add(2 * hour)}}}},
			"s-1| not used: out/s-2.json: the command could not resume from it"},
		{"resuming from it had failed, and it has been written again", map[string]time.Duration{"s-1": hour, "s-2": 3 * hour}, Past{Listed: true, Known: runs.Known{Failed: []runs.Mark{{Path: "out/s-2.json", Size: 2, Time: start.Add(2 * hour)}}}}, "s-2 s-1"},
	} {
		files := fstest.MapFS{}
		for name, after := range c.files {
			files["work/out/"+name+".json"] = &fstest.MapFile{Data: []byte("{}"), ModTime: start.Add(after)}
		}
		c.past.Begun, c.past.over = start, true
		found, err := findCheckpoints(scriptMatch(t, files, "/work", "out/*.json"), now, c.past)
		if err != nil {
			t.Fatal(c.name, err)
		}
		var got []string
		for _, one := range found.All {
			got = append(got, strings.TrimSuffix(filepath.Base(one.Path), ".json"))
		}
		want, said, _ := strings.Cut(c.want, "| ")
		if all := strings.Join(got, " "); all != want || (found.Newest == nil) != (want == "") {
			t.Errorf("%s: %s, want %s", c.name, all, want)
		}
		if why := found.skipped(); strings.Join(why, "; ") != said && (said == "" || len(why) != 1 || !strings.HasPrefix(why[0], said)) {
			t.Errorf("%s: %q, want %q", c.name, why, said)
		}
	}
}

// TestNameOfTheSame checks that a link to a checkpoint does not count beside the checkpoint.
func TestNameOfTheSame(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, "out", name) }
	for _, err := range []error{
		os.Mkdir(filepath.Join(dir, "out"), 0o755), os.WriteFile(at("s-1.json"), []byte("{}"), 0o600), os.WriteFile(at("s-2.json"), []byte("{}"), 0o600),
		os.Symlink("s-2.json", at("latest.json")), os.Link(at("s-1.json"), at("best.json")), os.Symlink("nothing", at("s-7.json")), os.Symlink("s-8.json", at("s-8.json")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	found, err := findCheckpoints(scriptMatch(t, os.DirFS("/"), dir, "out/*.json"), time.Now(), Past{over: true, Begun: time.Now().Add(-time.Hour), Listed: true})
	var got []string
	for _, c := range found.All {
		if c.Problem == "" {
			got = append(got, filepath.Base(c.Path))
		}
	}
	if slices.Sort(got); err != nil || !slices.Equal(got, []string{"s-1.json", "s-2.json"}) || len(found.All) != 4 {
		t.Errorf("%v of %+v, %v", got, found.All, err)
	}
	if why := strings.Join(found.skipped(), "; "); !strings.Contains(why, "s-7.json: stat ") || !strings.Contains(why, "s-8.json: stat ") {
		t.Errorf("of links that lead nowhere: %s", why)
	}
}

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
	var kept runs.Known
	m := scriptMatch(t, os.DirFS("/"), dir, "out/step-*")
	w := &Wrapped{Match: m, Command: m.Command, Begun: time.Now(), Keep: func(k runs.Known) { kept = k }}
	w.List()
	w.lived, w.ran = true, true
	newest := func(w *Wrapped, want string) *Saved {
		t.Helper()
		s, err := w.Newest()
		if err != nil || s == nil && want != "" || s != nil && s.Path != want {
			t.Fatalf("%+v, %v, want %s", s, err, want)
		}
		return s
	}
	newest(w, "")
	if len(kept.Before) != 2 {
		t.Errorf("kept %+v", kept)
	}
	write("out/step-2/w.json", "{}", ahead.Add(time.Second))
	write("out/step-4/w.json", "{}", ahead.Add(-time.Hour))
	four := newest(w, "out/step-4")
	if len(w.skipped) != 1 || w.skipped[0] != "not used: out/step-700: there before this run began" {
		t.Errorf("%q", w.skipped)
	}

	w.Reject(four)
	newest(w, "out/step-2")
	w.Judge(false)
	newest(w, "out/step-4")
	w.Reject(four)
	w.Judge(true)
	two := newest(w, "out/step-2")

	later := &Wrapped{Match: m, Command: m.Command, Begun: w.Begun}
	later.Recall(&kept)
	newest(later, "out/step-2")
	if !later.Wrote(two) {
		t.Error("a later process does not know what an earlier one has seen")
	}
	write("out/step-2/w.json", "{ }", ahead)
	if changed := newest(later, "out/step-2"); later.Wrote(changed) {
		t.Error("it has been written to since")
	}
	write("out/step-4/w.json", "{ }", ahead)
	newest(later, "out/step-4")
}

// TestCommandMayChooseAnother checks that a command which looks for its checkpoint itself is
// not made to resume if it might take one that is not of this run.
func TestCommandMayChooseAnother(t *testing.T) {
	for _, c := range []struct {
		old  string
		want string // what is wrong with the newest checkpoint
	}{
		{"ck-3.json", ""},
		{"ck-900.json", "the command looks for its checkpoint itself, and may choose out/ck-900.json, which is not of this run (there before this run began); move that elsewhere"},
	} {
		files := fstest.MapFS{
			"work/t.py":          {Data: []byte("p.add_argument('--resume', action='store_true')\n")},
			"work/out/" + c.old:  {Data: []byte("{}"), ModTime: start.Add(-time.Hour)},
			"work/out/ck-7.json": {Data: []byte("{}"), ModTime: start.Add(time.Hour)},
		}
		past := Past{Begun: start, Listed: true, Known: runs.Known{Before: []runs.Mark{{Path: "out/" + c.old, Size: 2, Time: start.Add(-time.Hour)}}}}
		found, err := findCheckpoints(scriptMatch(t, files, "/work", "out/ck-*.json"), now, past)
		if err != nil || found.Newest == nil || found.Newest.Path != "out/ck-7.json" || found.Newest.Problem != c.want {
			t.Errorf("%s: %+v, %v", c.old, found.Newest, err)
		}
	}
}

// TestUnknownFilesAreNotTheSame checks that checkpoints of a file system that numbers no files are not
// taken for each other.
func TestUnknownFilesAreNotTheSame(t *testing.T) {
	all := []Checkpoint{{Path: "a/step-1", Number: 1}, {Path: "b/step-1", Number: 1}}
	if got := unlinked(all); len(got) != 2 {
		t.Errorf("%+v", got)
	}
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
		w := Wrapped{Match: &rewrite.Match{Profile: profile.Profile{Unit: c.unit}}, base: c.base, Made: func() int { return c.made }}
		if got := w.most(); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
	}
	if got := (&Wrapped{Match: &rewrite.Match{Profile: profile.Profile{Unit: profile.Steps}}}).most(); got != 0 {
		t.Errorf("nobody tells: %d", got)
	}
}
