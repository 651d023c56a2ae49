package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"
)

// TestCheck checks what headroom check says about several scripts, and its exit status. No script
// may get as far as its first step.
func TestCheck(t *testing.T) {
	python := pythonWithTorch(t)
	script, err := filepath.Abs(filepath.Join("testdata", "check", "train.py"))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		kind   string
		env    string
		status int
		says   string // a pattern
	}{
		{"plain", "", 0, `^\S*train.py:44: backward of 64 rows of Sequential can be run in pieces: the gradients of 2 pieces match those of the whole batch to within \de-0\d\.\nThe optimizer took no step\.\n$`},
		{"batchnorm", "", 1, `train.py:44: backward of Sequential cannot be run in pieces: BatchNorm1d computes statistics over the batch\.\nWhere pieces would be wrong, the whole batch`},
		{"contrastive", "", 1, `cannot be run in pieces: matmul compares every row of the batch with every other\.`},
		{"tight", "", 0, `^\S*train.py:\d+: ran out of memory, and survived: 64 rows in 2 pieces\.\n(.*: backward of 64 rows .*\n)?The optimizer took no step\.\n$`},
		{"tight contrastive", "", 0, `^(\S*train.py:\d+: ran out of memory, and survived: 64 rows in 2 pieces, each computed twice\.\n){2}The optimizer took no step\.\n$`},
		{"plain", "WORLD_SIZE=2", 1, `^Nothing could be checked: a check looks at one rank, and the others would wait for it\.\n$`},
		{"ends", "", 1, `^Nothing could be checked: the command exited with status 3, and the worker was not attached: torch was imported, but no optimizer took a step\.\n$`},
	} {
		t.Run(c.kind+c.env, func(t *testing.T) {
			t.Chdir(t.TempDir())
			command := exec.Command("headroom", "check", "--", python, script, c.kind)
			command.Env = append(os.Environ(), "OMP_NUM_THREADS=1")
			if c.env != "" {
				command.Env = append(command.Env, c.env)
			}
			said, err := command.Output()
			status, exit := 0, (*exec.ExitError)(nil)
			if errors.As(err, &exit) {
				status = exit.ExitCode()
			}
			if status != c.status || !regexp.MustCompile(c.says).Match(said) {
				t.Errorf("status %d, want %d\n%s", status, c.status, said)
				if exit != nil {
					t.Logf("%s", exit.Stderr)
				}
			}
			if left, err := os.ReadDir("."); err != nil || len(left) > 0 {
				t.Errorf("%v is left behind, %v", left, err)
			}
		})
	}
}
