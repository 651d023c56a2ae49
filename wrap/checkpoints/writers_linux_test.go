package checkpoints

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"headroom/runs"
	"headroom/wrap/command"
	"headroom/wrap/wraptest"
)

// writer is a process that holds a file open for writing until it is told to go on.
type writer struct {
	*exec.Cmd
	tell io.Closer
}

// holds starts a process that makes the file at path, by a rename if by is not "", and holds it
// open.
func holds(t *testing.T, path, by string) writer {
	t.Helper()
	script := `mkdir -p "$(dirname "$1")"; exec 3>"$1"; echo x >&3; read _ || :; echo y >&3`
	if by != "" {
		script = `mkdir -p "$(dirname "$1")"; exec 3>"$2"; echo x >&3; read _ || :; mv "$2" "$1"`
	}
	c := exec.Command("sh", "-c", script, "sh", path, by)
	tell, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tell.Close(); _ = c.Wait() })
	return writer{c, tell}
}

func (w writer) end(t *testing.T) {
	t.Helper()
	if err := w.tell.Close(); err != nil {
		t.Error(err)
	}
	if err := w.Wait(); err != nil {
		t.Error(err)
	}
}

// TestWriters checks that the process that writes a file is found, whether the file's folder
// is there already or not, and whether the process is one of the command.
func TestWriters(t *testing.T) {
	for _, c := range []struct{ root, glob, file, by string }{
		{"out", "s-*.json", "out/s-1.json", ""},
		{"out", "s-*.json", "out/s-1.json", "out/part"},
		{"new/deep", "s-*.json", "new/deep/s-1.json", ""},
		{"out", "*/last.pt", "out/run-1/last.pt", ""},
		{"out", "step-*", "out/step-1/rank-0/w.pt", ""},
	} {
		dir := t.TempDir()
		at, root, first, by := filepath.Join(dir, c.file), filepath.Join(dir, c.root), filepath.Join(dir, c.file), ""
		if c.by != "" {
			by = filepath.Join(dir, c.by)
			first = by
		}
		if err := os.Mkdir(filepath.Join(dir, "out"), 0o755); err != nil {
			t.Fatal(err)
		}
		w := Watch(root, c.glob)
		if w == nil {
			t.Fatal("nothing is watched")
		}
		ours := 0
		w.Follow(func(pid int) bool { return pid == ours })
		of := func(name string) (own bool, other int) {
			info, err := os.Stat(name)
			if err != nil {
				return false, 0
			}
			return w.Of(keyOf(info))
		}
		stranger := holds(t, at, by)
		wraptest.Eventually(t, "the writer is found", func() bool { own, other := of(first); return !own && other == stranger.Process.Pid })
		stranger.end(t)
		if own, other := of(at); own || other != stranger.Process.Pid {
			t.Errorf("%s: after its end: %v, %d", c.file, own, other)
		}
		w.Close()
	}
}

// TestOwnWriter checks that a process of the command is told from others.
func TestOwnWriter(t *testing.T) {
	dir := t.TempDir()
	w := Watch(dir, "s-*")
	defer w.Close()
	w.Follow(func(int) bool { return true })
	own := holds(t, filepath.Join(dir, "s-1"), "")
	wraptest.Eventually(t, "the writer is found", func() bool {
		info, err := os.Stat(filepath.Join(dir, "s-1"))
		if err != nil {
			return false
		}
		is, other := w.Of(keyOf(info))
		return is && other == 0
	})
	own.end(t)
}

// TestOpenForWriting checks that a checkpoint which a process still writes is not complete.
func TestOpenForWriting(t *testing.T) {
	dir := t.TempDir()
	slow := holds(t, filepath.Join(dir, "out/s-2.txt"), "")
	wraptest.Eventually(t, "the file is there", func() bool { _, err := os.Stat(filepath.Join(dir, "out/s-2.txt")); return err == nil })
	m := scriptMatch(t, os.DirFS("/"), dir, "out/s-*.txt")
	found, err := Find(m, time.Now().Add(time.Hour), Past{Open: OpenFor(command.Resolved(filepath.Join(dir, "out")))})
	if err != nil || len(found.All) != 1 || found.All[0].Problem != fmt.Sprintf("process %d has it open for writing", slow.Process.Pid) {
		t.Errorf("%+v, %v", found.All, err)
	}
	slow.end(t)
	found, err = Find(m, time.Now().Add(time.Hour), Past{Open: OpenFor(command.Resolved(filepath.Join(dir, "out")))})
	if err != nil || found.Newest == nil {
		t.Errorf("%+v, %v", found.All, err)
	}
}

// TestTwoTrainings checks what a run resumes from if another training seems to have written to
// the same folder in its time.
func TestTwoTrainings(t *testing.T) {
	const (
		unknown = "" // nobody was seen to write the file
		own     = "own"
		other   = "other"
		before  = "before" // an earlier attempt of this run has written it
	)
	type file struct{ name, writer string }
	for _, c := range []struct {
		name    string
		files   []file // oldest first
		most    int64
		newest  string
		problem string // of newest
		skipped string
		certain int // if another run has come meanwhile: how many of the files were there before it; 0 if none has
	}{
		{"one series", []file{{"s-1", unknown}, {"s-2", unknown}}, 0, "s-2", "", "", 0},
		{"with names that have no number", []file{{"best", unknown}, {"s-2", unknown}, {"last", unknown}}, 0, "last", "", "", 0},
		{"two series", []file{{"A-6", unknown}, {"B-4", unknown}}, 0, "B-4", "A-6.json was written during this run, too, and it is not known which of them is this run's; name its checkpoints alone with --knob checkpoints=PATTERN", "", 0},
		{"two series, the newer one by this run", []file{{"A-6", unknown}, {"B-4", own}}, 0, "B-4", "", "", 0},
		{"two series, the newer one by this run before", []file{{"A-6", unknown}, {"B-3", own}, {"B-4", unknown}}, 0, "B-4", "", "", 0},
		{"two series, the older one by this run", []file{{"A-6", own}, {"B-4", unknown}}, 0, "A-6", "", "not used: B-4.json: not seen to be written by this run, unlike A-6.json", 0},
		{"another's", []file{{"A-6", unknown}, {"B-4", other}}, 0, "A-6", "", "not used: B-4.json: written by process 7, which is not of this run", 0},
		{"another's in the same series", []file{{"A-6", unknown}, {"A-900", other}}, 0, "A-6", "", "not used: A-900.json: written by process 7, which is not of this run", 0},
		{"two folders", []file{{"x/last", unknown}, {"y/last", unknown}}, 0, "y/last", "x/last.json was written during", "", 0},
		{"two folders, of two attempts", []file{{"x/last", before}, {"y/last", unknown}}, 0, "y/last", "", "", 0},
		{"a number that does not fit the steps made", []file{{"s-4", unknown}, {"s-900", unknown}}, 110, "s-4", "", "not used: s-900.json: this run has not got that far, so it seems to be of another one", 0},
		{"no number fits: they count something else", []file{{"s-400", unknown}, {"s-900", unknown}}, 110, "s-900", "", "", 0},
		{"it does not fit, but this run has written it", []file{{"s-4", unknown}, {"s-900", own}}, 110, "s-900", "", "", 0},
		{"another run has come", []file{{"A-1", unknown}, {"B-1", unknown}, {"A-2", unknown}}, 0, "A-1", "", "not used: A-2.json (and 1 more): perhaps written by another run, which keeps its checkpoints in the same place", 1},
		{"another run has come, and was seen", []file{{"A-1", unknown}, {"B-2", other}}, 0, "A-1", "", "not used: B-2.json: written by process 7, which is not of this run", 1},
		{"another run has come, and this one was seen", []file{{"A-1", unknown}, {"B-1", unknown}, {"A-2", own}}, 0, "A-2", "", "", 1},
	} {
		dir := t.TempDir()
		begun := time.Now().Add(-time.Hour)
		writers := map[FileKey]string{}
		past := Past{Begun: begun, Listed: true, Most: c.most, Over: true}
		pattern := "*.json"
		for i, f := range c.files {
			if strings.Contains(f.name, "/") {
				pattern = "*/*.json"
			}
			at, when := filepath.Join(dir, f.name+".json"), begun.Add(time.Duration(i+1)*time.Minute)
			if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(at, []byte("{}"), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Chtimes(at, when, when); err != nil {
				t.Fatal(err)
			}
			info, err := os.Stat(at)
			if err != nil {
				t.Fatal(err)
			}
			writers[keyOf(info)] = f.writer
			if i < c.certain {
				past.Shared = "another run"
				past.Certain = append(past.Certain, runs.Mark{Path: f.name + ".json", Size: 2, Time: info.ModTime()})
			}
			if f.writer == before {
				past.Saved = append(past.Saved, runs.Mark{Path: f.name + ".json", Size: 2, Time: info.ModTime()})
			}
		}
		past.Writer = func(key FileKey) (bool, int) {
			if writers[key] == other {
				return false, 7
			}
			return writers[key] == own, 0
		}
		found, err := Find(scriptMatch(t, os.DirFS("/"), dir, pattern), time.Now(), past)
		if err != nil || found.Newest == nil {
			t.Fatalf("%s: %+v, %v", c.name, found, err)
		}
		if n := found.Newest; n.Path != c.newest+".json" || (n.Problem == "") != (c.problem == "") || !strings.HasPrefix(n.Problem, c.problem) || n.Perhaps != (c.problem != "") {
			t.Errorf("%s: %s, %q", c.name, n.Path, n.Problem)
		}
		if why := strings.Join(found.Skipped(), "; "); c.problem == "" && why != c.skipped {
			t.Errorf("%s: %q", c.name, why)
		}
	}
}
