package rewrite

import (
	"strings"
	"testing"
	"testing/fstest"

	"headroom/wrap/command"
)

// TestVersion checks that the version of a package is read from the environment that the
// command is started from, and is not known if that environment has none or several.
func TestVersion(t *testing.T) {
	files := fstest.MapFS{}
	for _, name := range []string{
		"venv/bin/python", "venv/bin/torchrun", "venv/lib/python3.11/site-packages/trl-1.16.2.dist-info/METADATA",
		"usr/bin/python3", "usr/lib/python3/dist-packages/trl-0.9.dist-info/METADATA",
		"two/bin/python", "two/lib/python3.10/site-packages/trl-1.0.dist-info/METADATA", "two/lib/python3.11/site-packages/trl-1.1.dist-info/METADATA",
		"none/bin/python", "home/me/train.py",
	} {
		files[name] = &fstest.MapFile{Mode: 0o755}
	}
	for _, c := range []struct{ command, path, want string }{
		{"/venv/bin/python train.py", "", "1.16.2"},
		{"python train.py", "/none:/venv/bin:/usr/bin", "1.16.2"},
		{"python3 train.py", "/venv/bin:/usr/bin", "0.9"},
		{"env A=b torchrun --nproc-per-node 2 train.py", "/venv/bin:/usr/bin", "1.16.2"},
		{"../../venv/bin/python train.py", "", "1.16.2"},
		{"/two/bin/python train.py", "", ""},
		{"/none/bin/python train.py", "", ""},
		{"python train.py", "/missing", ""},
	} {
		m, err := Recognise(command.Line{Args: strings.Fields(c.command + " --bs 8"), Env: []string{"PATH=" + c.path}, Dir: "/home/me"}, nil,
			Given{Files: files, Knobs: []string{"micro=--bs"}})
		if err != nil {
			t.Fatal(err)
		}
		if got := version(m, "trl"); got != c.want {
			t.Errorf("%s with %s: %q, want %q", c.command, c.path, got, c.want)
		}
	}
}
