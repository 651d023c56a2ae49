package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"headroom/device"
	"headroom/runs"
)

// These are the environment variables of a headroom command that loses its device, and
// the file in which the command's processes count their losses.
const (
	loseAtKey    = "LOSE_AT"    // which answer of the device (see mortalDevice) is its last, counted in each process
	loseTimesKey = "LOSE_TIMES" // how many processes lose their device
	lossesFile   = "losses"

	loseReallyKey = "LOSE_REALLY" // if set, a real GPU is lost, by a write to an address where it has no memory
)

// lossy runs headroom with a device that is lost.
func lossy() {
	at, err := strconv.Atoi(os.Getenv(loseAtKey))
	times, bad := strconv.Atoi(os.Getenv(loseTimesKey))
	if err := errors.Join(err, bad); err != nil {
		panic(err)
	}
	if lost, err := os.ReadFile(lossesFile); err == nil && len(lost) >= times {
		at = 0
	}
	wrapDevice = func(d device.Device) device.Device {
		return &mortalDevice{Device: d, at: at, real: os.Getenv(loseReallyKey) != ""}
	}
	main()
}

// mortalDevice is a device that is lost for good at its at-th answer, or never if at is 0.
// An answer is a return from Sync or Download.
type mortalDevice struct {
	device.Device
	answers, at int
	real        bool
}

func (d *mortalDevice) answer() error {
	d.answers++
	switch {
	case d.at == 0 || d.answers < d.at:
		return nil
	case d.answers == d.at:
		lost, err := os.ReadFile(lossesFile)
		if err != nil && !os.IsNotExist(err) {
			panic(err)
		}
		if err := os.WriteFile(lossesFile, append(lost, '.'), 0o644); err != nil {
			panic(err)
		}
	}
	if d.real {
		d.Fill(device.Tensor{Addr: 512, Len: 1 << 20, DType: device.F32}, 1)
		return d.Device.Sync()
	}
	return &device.GoneError{Device: "the test device", Err: errors.New("fell off the bus")}
}

func (d *mortalDevice) Sync() error { return errors.Join(d.Device.Sync(), d.answer()) }

func (d *mortalDevice) Download(dst []float32, src device.Tensor) error {
	return errors.Join(d.Device.Download(dst, src), d.answer())
}

func startLossy(t *testing.T, at, times int, args ...string) *process {
	t.Helper()
	return startLossyAs(t, "headroom-lossy", at, times, args...)
}

func startLossyAs(t *testing.T, program string, at, times int, args ...string) *process {
	t.Helper()
	command := exec.Command(program, append(args, "--json")...)
	command.Env = append(os.Environ(), fmt.Sprintf("%s=%d", loseAtKey, at), fmt.Sprintf("%s=%d", loseTimesKey, times))
	return begin(t, command)
}

func kindsIn(t *testing.T, dir string) map[runs.Kind]int {
	t.Helper()
	entries, err := runs.ReadJournal(dir)
	if err != nil {
		t.Fatal(err)
	}
	kinds := map[runs.Kind]int{}
	for _, e := range entries {
		kinds[e.Kind]++
	}
	return kinds
}

// TestLostDeviceLeavesNoTrace repeats a run and loses the device once in each repetition: at
// the first Sync or Download, then at a later one, until losses have covered the building of
// the model, the steps and the checkpoints. Each run must continue under the same process ID
// and arrive at the result of a run that loses nothing.
func TestLostDeviceLeavesNoTrace(t *testing.T) {
	const steps = mortalEvery + 1
	stride := 1
	if testing.Short() {
		stride = 7
	}
	inEmptyFolder(t, "mortal.yaml", fmt.Sprintf(mortal, steps, mortalEvery))
	whole := start(t, "run", "mortal.yaml", "--name", "whole")
	if got := whole.end(); got != 0 {
		t.Fatalf("exit status %d\n%s", got, whole.stderr.String())
	}
	final := fmt.Sprintf("checkpoints/step-%06d/state.safetensors", steps)
	for at := 1; ; at += stride {
		if err := os.Remove(lossesFile); err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		p := startLossy(t, at, 1, "run", "mortal.yaml", "--fresh")
		if got := p.end(); got != 0 {
			t.Fatalf("lost at %d: exit status %d\n%s", at, got, p.stderr.String())
		}
		kinds := kindsIn(t, "runs/mortal")
		if kinds[runs.KindGone] == 0 {
			if at < 50 {
				t.Errorf("the device gives only %d answers", at)
			}
			break
		}
		if kinds[runs.KindRun] != 1 || kinds[runs.KindGone] != 1 || kinds[runs.KindAttempt] != 2 || kinds[runs.KindDone] != 1 {
			t.Fatalf("lost at %d: the journal has %v\n%s", at, kinds, p.stderr.String())
		}
		if text := p.stderr.String(); strings.Count(text, "the test device is gone: fell off the bus") != 1 || !strings.Contains(text, "continue in a new process from step ") ||
			!strings.Contains(text, "done: 8 steps, ") || !strings.Contains(text, ", device lost 1 time") || strings.Contains(text, "before this command") {
			t.Errorf("lost at %d:\n%s", at, text)
		}
		if s, err := runs.ReadStatus("runs/mortal"); err != nil || s.PID != p.cmd.Process.Pid || s.DeviceGone != 1 || s.State != runs.StateDone {
			t.Errorf("lost at %d: status %+v, %v; the process was %d", at, s, err, p.cmd.Process.Pid)
		}
		if hashOf(t, "runs/mortal/"+final) != hashOf(t, "runs/whole/"+final) {
			t.Errorf("lost at %d: the weights differ from those of a run that lost nothing", at)
		}
		everyStepOnce(t, steps)
	}
}

// TestLostEveryTime checks that a run ends if its device is lost again and again without a
// new checkpoint, and that it has the same number of tries when it is started again.
func TestLostEveryTime(t *testing.T) {
	inEmptyFolder(t, "mortal.yaml", fmt.Sprintf(mortal, 24, 0))
	for start := 1; start <= 2; start++ {
		p := startLossy(t, 10, 1000, "run", "mortal.yaml")
		last := p.until("the result", func(l printed) bool { return l.Kind == "result" })
		if got := p.end(); got != 122 || last.Status != 122 {
			t.Fatalf("exit status %d, told %d, want 122\n%s", got, last.Status, p.stderr.String())
		}
		text := p.stderr.String()
		for _, want := range []string{
			"continue in a new process from step 0 (restart 1 of 3 without a new checkpoint)", "(restart 3 of 3 without",
			"the device was lost 4 times without a new checkpoint in between: ", "fell off the bus",
			"hint: look for Xid errors in dmesg", "nvidia-smi -q", "the same command then continues from step 0",
		} {
			if strings.Count(text, want) < 1 {
				t.Errorf("no %q in\n%s", want, text)
			}
		}
		kinds := kindsIn(t, "runs/mortal")
		if kinds[runs.KindGone] != 4*start || kinds[runs.KindAttempt] != 4*start || kinds[runs.KindFailed] != start {
			t.Errorf("the journal has %v after start %d", kinds, start)
		}
	}
	s, err := runs.ReadStatus("runs/mortal")
	if err != nil || s.State != runs.StateFailed || s.DeviceGone != 8 {
		t.Errorf("status %+v, %v", s, err)
	}
	var out strings.Builder
	look := exec.Command("headroom", "status", "mortal")
	look.Stdout = &out
	if err := look.Run(); err != nil || !strings.Contains(out.String(), "the device was lost 8 times") {
		t.Errorf("%v: %s", err, out.String())
	}
}

// TestRelaunchedRunCanBeStopped checks that a signal stops a process that has been
// relaunched, and that this process has opened the kind of device that was lost, without
// looking for a better one.
func TestRelaunchedRunCanBeStopped(t *testing.T) {
	inEmptyFolder(t, "endless.yaml", endless)
	t.Setenv("CUDA_VISIBLE_DEVICES", "-1")
	p := startLossy(t, 10, 1, "run", "endless.yaml", "--set", "device.kind=auto")
	p.until("the loss", func(l printed) bool { return l.Kind == string(runs.KindGone) })
	p.until("a step", stepAfter(20))
	p.signal(syscall.SIGTERM)
	if got := p.end(); got != 75 {
		t.Errorf("exit status %d, want 75\n%s", got, p.stderr.String())
	}
	if n := strings.Count(p.stderr.String(), "training without cuda"); n != 1 {
		t.Errorf("devices were looked for %d times\n%s", n, p.stderr.String())
	}
	if text, err := os.ReadFile("runs/endless/run.yaml"); err != nil || !strings.Contains(string(text), "kind: auto") {
		t.Errorf("run.yaml, %v\n%s", err, text)
	}
}

func TestForeignRelaunchIsRefused(t *testing.T) {
	t.Chdir(t.TempDir())
	for _, text := range []string{"", "1", "null", `{"dir":"runs/other"}`, `{"pid":1,"dir":"runs/other"}`} {
		t.Setenv(execKey, text)
		p := start(t, "run", "gpt")
		if got := p.end(); got != 2 || !strings.Contains(p.stderr.String(), "unset "+execKey) {
			t.Errorf("%q: exit status %d: %s", text, got, p.stderr.String())
		}
	}
}

// TestRelaunchKeepsItsProgram checks that a relaunched run keeps its program and its
// configuration, even if the program's file has been replaced, as by a build or an update,
// and the user's configuration has been removed.
func TestRelaunchKeepsItsProgram(t *testing.T) {
	inEmptyFolder(t, "endless.yaml", endless)
	path, err := exec.LookPath("headroom-lossy")
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile(path)
	if err == nil {
		err = os.WriteFile("headroom-lossy", program, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	p := startLossyAs(t, "./headroom-lossy", 20000, 1, "run", "endless.yaml")
	p.until("a step", stepAfter(0))
	err = errors.Join(os.Remove("headroom-lossy"), os.WriteFile("headroom-lossy", []byte("#!/bin/sh\nexit 99\n"), 0o755), os.Remove("endless.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	p.until("the loss", func(l printed) bool { return l.Kind == string(runs.KindGone) })
	p.until("a step", stepAfter(0))
	p.signal(syscall.SIGTERM)
	if got := p.end(); got != 75 {
		t.Errorf("exit status %d, want 75\n%s", got, p.stderr.String())
	}
}

// TestRelaunchKeepsTheFolder checks that the run's folder stays held by the same process
// ID while the run is relaunched.
func TestRelaunchKeepsTheFolder(t *testing.T) {
	inEmptyFolder(t, "endless.yaml", endless)
	p := startLossy(t, 1, 3, "run", "endless.yaml", "-q")
	p.until("the loss", func(l printed) bool { return l.Kind == string(runs.KindGone) })
	for looks := 0; ; looks++ {
		s, err := runs.ReadStatus("runs/endless")
		if err != nil || s.State != runs.StateRunning || s.PID != p.cmd.Process.Pid {
			t.Fatalf("look %d: %v by %d, %v", looks, s.State, s.PID, err)
		}
		if s.DeviceGone == 3 && s.Attempt == 4 {
			break
		}
	}
	p.signal(syscall.SIGTERM)
	if got, said := p.end(), p.stderr.String(); got != 75 || strings.Count(said, "warning: the device was lost: ") != 3 {
		t.Errorf("exit status %d, want 75, and three quiet losses\n%s", got, said)
	}
}

// TestRelaunchThatCannotGoOn checks that a relaunched run ends with a usage error if its
// run.yaml has been removed, and that the error says what headroom was trying to do.
func TestRelaunchThatCannotGoOn(t *testing.T) {
	inEmptyFolder(t, "endless.yaml", endless)
	p := startLossy(t, 20000, 1, "run", "endless.yaml")
	p.until("a step", stepAfter(0))
	if err := os.Remove("runs/endless/run.yaml"); err != nil {
		t.Fatal(err)
	}
	last := p.until("the result", func(l printed) bool { return l.Kind == "result" })
	if got := p.end(); got != 2 || last.Status != 2 || !strings.Contains(p.stderr.String(), "continue after the device was lost: ") {
		t.Errorf("exit status %d, told %d, want 2\n%s", got, last.Status, p.stderr.String())
	}
}

func TestFindDoesNotRelaunch(t *testing.T) {
	inEmptyFolder(t, "endless.yaml", endless)
	p := startLossy(t, 10, 1, "find", "endless.yaml")
	got, said := p.end(), p.stderr.String()
	if got != 122 || !strings.Contains(said, "the test device is gone: fell off the bus") || !strings.Contains(said, "hint: look for Xid errors in dmesg") || strings.Contains(said, "relaunch") {
		t.Errorf("exit status %d, want 122\n%s", got, said)
	}
	if _, err := os.Stat("runs"); !os.IsNotExist(err) {
		t.Errorf("find left something: %v", err)
	}
}
