package worker

import (
	"bufio"
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// proof returns a command that runs a script of python/tests with the package
// on its path.
func proof(t *testing.T, script string, args ...string) *exec.Cmd {
	t.Helper()
	python := pythonWithTorch(t)
	root, err := filepath.Abs("python")
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command(python, append([]string{filepath.Join(root, "tests", script)}, args...)...)
	c.Env = append(os.Environ(), "PYTHONPATH="+root, "OMP_NUM_THREADS=1", "PYTHONDONTWRITEBYTECODE=1", "TOKENIZERS_PARALLELISM=false")
	return c
}

// swept is the result of sweep.py for one training loop.
type swept struct {
	Name       string         `json:"name"`
	Kind       string         `json:"kind"`
	Operations int            `json:"operations"`
	Runs       int            `json:"runs"`
	Survived   int            `json:"survived"`
	Raised     int            `json:"raised"`
	Wrong      int            `json:"wrong"`
	Where      map[string]int `json:"where"`
	Missed     []string       `json:"missed"`
	Notes      []string       `json:"notes"`
	Failed     bool           `json:"failed"`
}

// sweeps runs sweep.py, reports its result for each training loop in a subtest,
// and returns the number of loops.
func sweeps(t *testing.T, args ...string) (loops int) {
	t.Helper()
	c := proof(t, "sweep.py", append([]string{"--json"}, args...)...)
	var said bytes.Buffer
	c.Stderr = &said
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	for lines.Buffer(nil, 1<<20); lines.Scan(); loops++ {
		var s swept
		if err := json.Unmarshal(lines.Bytes(), &s); err != nil {
			t.Fatalf("%v: %s", err, lines.Bytes())
		}
		t.Run(s.Name, func(t *testing.T) {
			t.Logf("%s, %d operations, %d runs: survived %d, raised %d %v, wrong %d", s.Kind, s.Operations, s.Runs, s.Survived, s.Raised, s.Where, s.Wrong)
			for _, note := range s.Notes {
				t.Error("wrong: " + note)
			}
			if s.Failed {
				t.Error("not survived:\n" + strings.Join(s.Missed, "\n"))
			}
			if s.Runs == 0 {
				t.Error("nothing was failed")
			}
		})
	}
	if err := c.Wait(); err != nil && !t.Failed() {
		t.Fatalf("%v\n%s", err, said.String())
	}
	return loops
}

// TestEveryOperationFails makes operations of a training step fail, one at a time, in
// every shape of loop. Each failure must be survived with the gradients of the
// undisturbed step, or reach the user's code with nothing changed. All operations of all
// loops would take hours: here it is one in many, and of each loop some.
func TestEveryOperationFails(t *testing.T) {
	if loops := sweeps(t, "--every", "64"); loops < 26 {
		t.Errorf("%d loops, want at least 26", loops)
	}
}

// TestFailuresInPairs makes the same checks as TestEveryOperationFails for steps in which
// a second operation fails while the failure of the first is being handled.
func TestFailuresInPairs(t *testing.T) {
	if loops := sweeps(t, "--pairs", "learned_temperature", "--every", "3"); loops != 1 {
		t.Errorf("%d loops, want 1", loops)
	}
}

// TestProofs runs the other scripts of python/tests. A script exits with status 0 if everything
// that it checks holds.
func TestProofs(t *testing.T) {
	for _, c := range [][]string{
		{"sizes.py"},
		{"ranks.py"},
		{"ddp.py", "--every", "50"},
		{"ddp.py", "--frameworks", "--loops", "accelerated,lightning,lightning_itself,transformers", "--every", "50"},
		{"evaluation.py"},
		{"untrained.py"},
		{"trackers.py"},
		{"updates.py"},
		{"threads.py"},
		{"alone.py"},
		{"endings.py"},
		{"replays.py"},
		{"changes.py"},
		{"idle.py"},
		{"host.py"},
		{"finding.py"},
		{"looking.py"},
		{"asked.py"},
		{"twopass.py"},
		{"holders.py"},
		{"account.py"},
		{"explicit.py"},
		{"selfcheck.py"},
		{"undisturbed.py"},
		{"patched.py"},
		{"fools.py", "--count", "2"},
		{"real.py"},
		{"reading.py"},
		{"notebook.py"},
	} {
		t.Run(strings.TrimSuffix(c[0], ".py"), func(t *testing.T) {
			script := proof(t, c[0], c[1:]...)
			if c[0] == "notebook.py" {
				script.Env = append(script.Env, "HEADROOM_NOTEBOOK="+jupyter(t), "PYTHONPATH="+filepath.Dir(filepath.Dir(script.Args[1]))+":"+jupyter(t))
			}
			out, err := script.CombinedOutput()
			t.Logf("%s", out)
			if err != nil {
				t.Error(err)
			}
		})
	}
}
