package main

import (
	"bufio"
	"bytes"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"headroom/runs"
)

// TestTorchSurvivesInPlace wraps a training loop that knows nothing of headroom, in so little
// memory that PyTorch's own allocator fails. The loop must exit with 0 without being started
// again, and its losses must be those of a run that had enough memory. If it is only watched,
// it must end as it does without headroom.
func TestTorchSurvivesInPlace(t *testing.T) {
	python := pythonWithTorch(t)
	script, err := filepath.Abs(filepath.Join("..", "..", "worker", "testdata", "cases", "limited.py"))
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(t.TempDir())
	run := func(front []string, room string, more ...string) (losses []float64, status int, errs string) {
		words := append(append(front, python, script, "4000", room), more...)
		c := exec.Command(words[0], words[1:]...)
		c.Env = append(os.Environ(), "MALLOC_ARENA_MAX=1", "OMP_NUM_THREADS=1", "GORACE=atexit_sleep_ms=0")
		var said, wrong bytes.Buffer
		c.Stdout, c.Stderr = &said, &wrong
		_ = c.Run() // the exit status is returned below
		for lines := bufio.NewScanner(&said); lines.Scan(); {
			var step int
			var loss float64
			if n, _ := fmt.Sscan(lines.Text(), &step, &loss); n != 2 || step != len(losses) {
				t.Fatalf("it printed %q", lines.Text())
			}
			losses = append(losses, loss)
		}
		return losses, c.ProcessState.ExitCode(), wrong.String()
	}
	want, status, errs := run(nil, "0")
	if status != 0 || len(want) != 6 {
		t.Fatalf("with room: status %d, %v\n%s", status, want, errs)
	}
	got, status, errs := run([]string{"headroom", "run", "--name", "inside", "--"}, "80")
	if status != 0 || len(got) != len(want) || strings.Contains(errs, "Traceback") {
		t.Fatalf("status %d, %v\n%s", status, got, errs)
	}
	for i := range want {
		if math.Abs(got[i]-want[i]) > 1e-5*want[i] {
			t.Errorf("step %d: loss %v, with room %v", i, got[i], want[i])
		}
	}
	entries, err := runs.ReadJournal(filepath.Join("runs", "inside"))
	if err != nil {
		t.Fatal(err)
	}
	survived := 0
	for _, e := range entries {
		if e.Kind == runs.KindSurvived && e.OOM.Requested == 32000000 && strings.Contains(e.Text, "limited.py:") {
			survived++
		}
		if e.Attempt > 1 || e.Kind == runs.KindOOM {
			t.Errorf("%+v", e)
		}
	}
	if survived != 1 {
		t.Errorf("%d failures were survived\n%s", survived, errs)
	}
	if _, status, errs = run([]string{"headroom", "run", "--observe", "--"}, "80"); status != 1 || !strings.Contains(errs, "DefaultCPUAllocator") {
		t.Errorf("only watched: status %d\n%s", status, errs)
	}

	// The loop may run in another thread than the one that imported torch.
	got, status, errs = run([]string{"headroom", "run", "--"}, "80", "thread")
	if status != 0 || len(got) != len(want) || !strings.Contains(errs, "survived in place") {
		t.Fatalf("in a thread: status %d, %v\n%s", status, got, errs)
	}
	for i := range want {
		if math.Abs(got[i]-want[i]) > 1e-5*want[i] {
			t.Errorf("in a thread, step %d: loss %v, with room %v", i, got[i], want[i])
		}
	}

	// BatchNorm cannot be cut exactly, and on the CPU the whole batch does not fit in any other way.
	if _, status, errs = run([]string{"headroom", "run", "--"}, "80", "norm"); status != 1 || !strings.Contains(errs, "BatchNorm1d computes statistics over the batch") {
		t.Errorf("with BatchNorm: status %d\n%s", status, errs)
	}
}
