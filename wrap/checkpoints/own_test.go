package checkpoints

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"headroom/runs"
	"headroom/wrap/wraptest"
)

// TestOfThisRun checks which checkpoints count as those of the run, in which order they are
// tried, and what is said about the others.
func TestOfThisRun(t *testing.T) {
	const hour = time.Hour
	old := runs.Mark{Path: "out/s-2.json", Size: 2, Time: wraptest.Start.Add(-hour)}
	ahead := runs.Mark{Path: "out/s-2.json", Size: 2, Time: wraptest.Now.Add(hour)}
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
		{"resuming from it has failed", map[string]time.Duration{"s-1": hour, "s-2": 2 * hour}, Past{Listed: true, Known: runs.Known{Failed: []runs.Mark{{Path: "out/s-2.json", Size: 2, Time: wraptest.Start.Add(2 * hour)}}}},
			"s-1| not used: out/s-2.json: the command could not resume from it"},
		{"resuming from it had failed, and it has been written again", map[string]time.Duration{"s-1": hour, "s-2": 3 * hour}, Past{Listed: true, Known: runs.Known{Failed: []runs.Mark{{Path: "out/s-2.json", Size: 2, Time: wraptest.Start.Add(2 * hour)}}}}, "s-2 s-1"},
	} {
		files := fstest.MapFS{}
		for name, after := range c.files {
			files["work/out/"+name+".json"] = &fstest.MapFile{Data: []byte("{}"), ModTime: wraptest.Start.Add(after)}
		}
		c.past.Begun, c.past.Over = wraptest.Start, true
		found, err := Find(scriptMatch(t, files, "/work", "out/*.json"), wraptest.Now, c.past)
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
		if why := found.Skipped(); strings.Join(why, "; ") != said && (said == "" || len(why) != 1 || !strings.HasPrefix(why[0], said)) {
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
	found, err := Find(scriptMatch(t, os.DirFS("/"), dir, "out/*.json"), time.Now(), Past{Over: true, Begun: time.Now().Add(-time.Hour), Listed: true})
	var got []string
	for _, c := range found.All {
		if c.Problem == "" {
			got = append(got, filepath.Base(c.Path))
		}
	}
	if slices.Sort(got); err != nil || !slices.Equal(got, []string{"s-1.json", "s-2.json"}) || len(found.All) != 4 {
		t.Errorf("%v of %+v, %v", got, found.All, err)
	}
	if why := strings.Join(found.Skipped(), "; "); !strings.Contains(why, "s-7.json: cannot be read: ") || !strings.Contains(why, "s-8.json: cannot be read: ") {
		t.Errorf("of links that lead nowhere: %s", why)
	}
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
			"work/out/" + c.old:  {Data: []byte("{}"), ModTime: wraptest.Start.Add(-time.Hour)},
			"work/out/ck-7.json": {Data: []byte("{}"), ModTime: wraptest.Start.Add(time.Hour)},
		}
		past := Past{Begun: wraptest.Start, Listed: true, Known: runs.Known{Before: []runs.Mark{{Path: "out/" + c.old, Size: 2, Time: wraptest.Start.Add(-time.Hour)}}}}
		found, err := Find(scriptMatch(t, files, "/work", "out/ck-*.json"), wraptest.Now, past)
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
