package main

import (
	"bytes"
	"math"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// TestExample checks what the README says about examples/train.py. With too little memory,
// the script fails without headroom. With headroom, Python prints the same as with enough
// memory, and nothing else. The script continues from its checkpoints as if nothing had
// happened.
func TestExample(t *testing.T) {
	python := pythonWithTorch(t)
	script, err := filepath.Abs(filepath.Join("..", "..", "examples", "train.py"))
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(t.TempDir())
	run := func(front []string, flags ...string) (out, errs string, failed error) {
		words := append(append(front, python, script, "--steps", "3", "--save-every", "2"), flags...)
		c := exec.Command(words[0], words[1:]...)
		var said, wrong bytes.Buffer
		c.Stdout, c.Stderr = &said, &wrong
		failed = c.Run()
		return said.String(), wrong.String(), failed
	}
	want, errs, err := run(nil)
	if err != nil || strings.Count(want, "\n") != 3 {
		t.Fatalf("with room: %v\n%s%s", err, want, errs)
	}
	if _, errs, err := run(nil, "--room", "256"); err == nil || !strings.Contains(errs, "can't allocate memory") {
		t.Errorf("without room and without headroom: %v\n%s", err, errs)
	}
	got, errs, err := run([]string{"headroom", "run", "--"}, "--room", "256")
	if err != nil || !sameLosses(got, want) {
		t.Errorf("%v\n%swith room:\n%s", err, got, want)
	}
	for line := range strings.Lines(errs) {
		if !strings.HasPrefix(line, "headroom: ") {
			t.Errorf("it also says %q", line)
		}
	}
	if !strings.Contains(errs, "headroom: > survived in place: 65536 rows in ") || !strings.HasSuffix(errs, "headroom: done: 1 out-of-memory failure survived in place\n") {
		t.Errorf("%s", errs)
	}
	if got, errs, err := run(nil, "--resume", filepath.Join("out", "step-0002.pt")); err != nil || !sameLosses(got, "continues after step 2\n"+want[strings.Index(want, "step 3"):]) {
		t.Errorf("%v\n%s%s\nthe whole of it:\n%s", err, got, errs, want)
	}
}

// sameLosses reports whether two outputs are the same except for rounding in the losses.
func sameLosses(got, want string) bool {
	a, b := strings.Fields(got), strings.Fields(want)
	return slices.EqualFunc(a, b, func(a, b string) bool {
		x, notX := strconv.ParseFloat(a, 64)
		y, notY := strconv.ParseFloat(b, 64)
		return a == b || notX == nil && notY == nil && math.Abs(x-y) < 5e-5
	})
}
