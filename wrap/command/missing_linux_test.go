package command

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestMissing checks that what does not exist is named before a command is started, and
// that nothing is said where it cannot be seen.
func TestMissing(t *testing.T) {
	dir := t.TempDir()
	for name, mode := range map[string]os.FileMode{"python3": 0o755, "torchrun": 0o755, "env": 0o755, "srun": 0o755, "uv": 0o755, "train.py": 0o644} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, mode); err != nil {
			t.Fatal(err)
		}
	}
	for command, want := range map[string]string{
		"python3 train.py":                      "",
		"python3 trian.py --lr 3":               "trian.py does not exist",
		"python3 " + dir + "/trian.py":          dir + "/trian.py does not exist",
		"torchrun --nproc_per_node 2 trian.py":  "trian.py does not exist",
		"env A=1 python3 trian.py":              "trian.py does not exist",
		"env -C /elsewhere python3 trian.py":    "",
		"uv run --directory /there trian.py":    "",
		"srun -n 2 python3 trian.py":            "",
		"python3 -m trian":                      "",
		"pyhton3 train.py":                      "start pyhton3: command not found",
		"python3 train.py --config missing.yml": "",
	} {
		c := Line{Args: strings.Fields(command), Env: []string{"PATH=" + dir}, Dir: dir}
		if got := c.Missing(); got != want {
			t.Errorf("%s: %q, want %q", command, got, want)
		}
	}
}

// TestUnopened checks that a run counts as never begun only if Python said so of the
// command's own script or module.
func TestUnopened(t *testing.T) {
	const script = "/opt/venv/bin/python3.11: can't open file '/home/ada/trian.py': [Errno 2] No such file or directory\n"
	for _, c := range []struct{ command, output, want string }{
		{"python3 trian.py", script, "trian.py"},
		{"python trian.py", "python: can't open file 'trian.py': [Errno 2] No such file or directory\n", "trian.py"},
		{"torchrun --nproc_per_node 2 trian.py", "W1104 torchrun\n" + script + script, "trian.py"},
		{"python3 -m trian", "/usr/bin/python3: No module named trian\n", "trian"},
		{"python3 -m trian.run", "/usr/bin/python3: Error while finding module specification for 'trian.run' (ModuleNotFoundError: No module named 'trian')\n", "trian.run"},
		{"python3 train.py", script, ""},      // a training that starts another Python
		{"python3 train.py", "a.py: 1\n", ""}, // it said nothing of the kind
		{"python3 -m train", script, ""},      // another script
		{"python3 trian.py", "ModuleNotFoundError: No module named 'trian'\n", ""},
		{"bash trian.sh", script, ""},
	} {
		if got := (Line{Args: strings.Fields(c.command)}).Unopened([]byte(c.output)); got != c.want {
			t.Errorf("%s: %q, want %q", c.command, got, c.want)
		}
	}
}
