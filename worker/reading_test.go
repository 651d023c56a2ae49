package worker

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// reads puts files into a folder, and reads one of them there.
func reads(t *testing.T, interpreter string, files map[string]string, words ...string) ([]Finding, string) {
	t.Helper()
	dir, temp := t.TempDir(), t.TempDir()
	t.Setenv("TMPDIR", temp)
	for name, text := range files {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	before := tree(t, dir)
	if strings.HasPrefix(interpreter, "./") {
		interpreter = filepath.Join(dir, interpreter)
	}
	found, err := Read(context.Background(), Script{Interpreter: interpreter, Words: words, Env: os.Environ(), Dir: dir}, "1.2.3")
	if after := tree(t, dir); !slices.Equal(before, after) {
		t.Errorf("%q, and before %q", after, before)
	}
	if left := tree(t, temp); len(left) > 1 {
		t.Errorf("%q is left behind", left)
	}
	if err != nil {
		return found, err.Error()
	}
	return found, ""
}

// tree returns the names of all files in a folder.
func tree(t *testing.T, dir string) (all []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		all = append(all, path)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// TestRead reads scripts that would leave a file behind if anything of them were executed, in a
// folder with modules that have the names of Python's own.
func TestRead(t *testing.T) {
	python := anyPython(t).program
	const leaves = "open('executed', 'w')\n"
	files := map[string]string{
		"ast.py": leaves, "json.py": leaves, "sitecustomize.py": leaves, "os/__init__.py": leaves,
		"train.py":        leaves + "import helper\nopt.zero_grad(set_to_none=False)\n",
		"helper.py":       leaves + "\nmodel.zero_grad(False)\n",
		"pkg/__init__.py": "", "pkg/train.py": "from . import steps\n", "pkg/steps.py": "net.zero_grad(set_to_none=False)\n",
		"broken.py": "def f(:\n",
		"hangs":     "#!/bin/sh\nexec sleep 60\n",
		"fails":     "#!/bin/sh\necho one >&2; echo no such environment >&2; exit 3\n",
		"talks":     "#!/bin/sh\necho hello\n",
	}
	t.Setenv("PYTHONPATH", ".")
	for _, c := range []struct {
		words string
		want  string // file:line of each finding
	}{
		{"train.py", "train.py:3 helper.py:3"},
		{"-m pkg.train", "steps.py:1"},
	} {
		found, why := reads(t, python, files, strings.Fields(c.words)...)
		var at []string
		for _, f := range found {
			at = append(at, filepath.Base(f.File)+":"+string(rune('0'+f.Line)))
			if f.Rule != "gradients-not-released" || f.Why == "" || !strings.HasSuffix(f.Instead, "zero_grad()") {
				t.Errorf("%+v", f)
			}
		}
		if strings.Join(at, " ") != c.want || why != "" {
			t.Errorf("%s: %q, %s; want %s", c.words, at, why, c.want)
		}
	}
	for _, c := range []struct{ interpreter, words, why string }{
		{python, "broken.py", "broken.py: invalid syntax"},
		{python, "missing.py", "missing.py: No such file or directory"},
		{python, "-m no.such", "no.such is not a module in this folder"},
		{"./fails", "train.py", "fails cannot read the script: exit status 3: no such environment"},
		{"./talks", "train.py", "talks cannot read the script: invalid character"},
		{"./nothing", "train.py", "no such file or directory"},
	} {
		if found, why := reads(t, c.interpreter, files, strings.Fields(c.words)...); len(found) > 0 || !strings.Contains(why, c.why) {
			t.Errorf("%s %s: %v, %s", c.interpreter, c.words, found, why)
		}
	}
	before := readingMost
	t.Cleanup(func() { readingMost = before })
	readingMost = 1
	if found, why := reads(t, "./hangs", files, "train.py"); len(found) > 0 || !strings.Contains(why, "did not read the script within") {
		t.Errorf("%v, %s", found, why)
	}
}
