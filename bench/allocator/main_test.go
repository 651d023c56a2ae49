package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"headroom/memory"
)

// TestMain runs the program itself when run.sh calls the test binary.
func TestMain(m *testing.M) {
	if os.Getenv("ALLOCBENCH_TEST") != "" {
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

const toyTrace = "-layers 2 -width 16 -heads 2 -vocab 300 -micro 2 -least 4 -most 64 -steps 50"

func execute(t *testing.T, args ...string) error {
	t.Helper()
	o, err := parseFlags(args)
	if err != nil {
		t.Fatal(err)
	}
	return run(o)
}

func TestTraceAndReplayOnTheHost(t *testing.T) {
	folder := t.TempDir()
	path, out := filepath.Join(folder, "trace.json"), filepath.Join(folder, "result.json")
	if err := execute(t, append(strings.Fields(toyTrace), "-write", path)...); err != nil {
		t.Fatal(err)
	}
	trace, err := readTrace(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, factor := range []string{"0", "1.5"} {
		if err := execute(t, "-trace", path, "-device", "host", "-factor", factor, "-out", out); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(out)
		if err != nil {
			t.Fatal(err)
		}
		var r result
		if err := json.Unmarshal(text, &r); err != nil {
			t.Fatal(err)
		}
		if r.Allocator != "headroom" || r.Device != "host" || r.Steps != 50 || r.PeakAllocated != trace.Peak || r.Lost != 0 {
			t.Errorf("factor %s: %s", factor, text)
		}
		if r.Limit != memory.Bytes(r.Factor*float64(trace.Peak)) || factor != "0" && r.PeakReserved > r.Limit {
			t.Errorf("factor %s: limit %v, %v reserved of a peak of %v", factor, r.Limit, r.PeakReserved, trace.Peak)
		}
	}
	if err := execute(t, "-trace", path, "-device", "host", "-factor", "0.01", "-out", out); err == nil {
		t.Error("the state fits a 100th of the peak")
	}
}

// TestScript runs the script with host memory in place of the GPU's. It expects
// rows about PyTorch only if PyTorch is installed.
func TestScript(t *testing.T) {
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("no python3")
	}
	binary, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	out := t.TempDir()
	script := exec.Command("./run.sh", binary, out)
	script.Env = append(os.Environ(), "ALLOCBENCH_TEST=1", "TRACE="+toyTrace, "PRETEND=2", "BUDGET=2")
	if text, err := script.CombinedOutput(); err != nil {
		t.Fatalf("%v:\n%s", err, text)
	}
	text, err := os.ReadFile(filepath.Join(out, "allocator.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"Date: ", "Command: bench/allocator/run.sh", "50 steps, 36 tensors a step",
		"\n| headroom | none | 50 |", "\n| headroom | 1.15 | 50 |", "\n| cuMemAlloc, no cache | none | 50 |", "could not be given out",
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	var all struct{ Rows []result }
	text, err = os.ReadFile(filepath.Join(out, "allocator.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &all); err != nil {
		t.Fatal(err)
	}
	first, last := all.Rows[0], all.Rows[len(all.Rows)-1]
	if last.Allocator != "driver" || first.PeakAllocated != last.PeakAllocated || last.Calls.Reserve < 50*36 || last.Calls.Reserve-last.Calls.Release != 5 {
		t.Errorf("the first row is %+v, the last one %+v", first, last)
	}
}

func TestFlagsThatMakeNoSense(t *testing.T) {
	for _, args := range []string{
		"", "-write a -trace b", "-write a -least 0", "-write a -least 9 -most 9", "-write a -steps 0", "-write a -micro 0", "-write a -vocab 0",
		"-trace a -device tpu", "-trace a -factor -1", "-trace a left",
	} {
		if _, err := parseFlags(strings.Fields(args)); err == nil {
			t.Errorf("%q was taken", args)
		}
	}
}
