package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"headroom/cmd/headroom/ui"
	"headroom/device"
)

// fatal runs headroom with a device that crashes the Go runtime by unlocking a mutex that
// is not locked. A recover does not catch that error.
func fatal() {
	wrapDevice = func(d device.Device) device.Device { return &fatalDevice{Device: d} }
	main()
}

type fatalDevice struct {
	device.Device
	answers int
}

func (d *fatalDevice) Sync() error {
	if d.answers++; d.answers == 10 {
		new(sync.Mutex).Unlock()
	}
	return d.Device.Sync()
}

// crashed returns the exit status as the shell and systemd report it: 128 + n after
// signal n.
func (p *process) crashed() int {
	if got := p.end(); got >= 0 {
		return got
	}
	ended, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
	if !ok {
		p.t.Fatalf("%T does not tell of a signal", p.cmd.ProcessState.Sys())
	}
	return ui.Signalled + int(ended.Signal())
}

// TestCrashIsNoUsageError ends a run with each signal at which the Go runtime prints a
// trace, and with a fatal error of the runtime. Each time the process must end with
// SIGABRT, and headroom status must report the crash. By default, the runtime would exit
// with status 2, which headroom uses for usage errors. If a signal arrives while the
// program is in C code, as in a matrix product, the runtime may fault while it prints the
// trace. Then the process may end with SIGSEGV instead.
func TestCrashIsNoUsageError(t *testing.T) {
	inEmptyFolder(t, "endless.yaml", endless)
	for _, c := range []struct {
		program string
		signal  syscall.Signal
		says    string
	}{
		{"headroom", syscall.SIGQUIT, "SIGQUIT: quit"},
		{"headroom", syscall.SIGABRT, "SIGABRT: abort"},
		{"headroom", syscall.SIGSEGV, "SIGSEGV: segmentation violation"},
		{"headroom", syscall.SIGBUS, "SIGBUS: bus error"},
		{"headroom-fatal", 0, "fatal error in internal/sync.(*Mutex).unlockSlow"},
	} {
		p := begin(t, exec.Command(c.program, "run", "endless.yaml", "--fresh", "--json"))
		if c.signal != 0 {
			p.until("a step", stepAfter(0))
			p.signal(c.signal)
		}
		got, want := p.crashed(), ui.Signalled+int(syscall.SIGABRT)
		faulted := strings.Contains(p.stderr.String(), "panic during panic") && got == ui.Signalled+int(syscall.SIGSEGV)
		if got != want && !faulted {
			t.Fatalf("%s: exit status %d, want %d\n%s", c.says, got, want, p.stderr.String())
		}
		out, err := exec.Command("headroom", "status", "endless").CombinedOutput()
		if err != nil || !strings.Contains(string(out), " crashed ") || !strings.Contains(string(out), "endless crashed: "+c.says+"; the trace is in runs/endless/logs/crash-001.log") {
			t.Errorf("%s: %v\n%s", c.says, err, out)
		}
		if cores, err := filepath.Glob("core*"); err != nil || cores != nil {
			t.Errorf("%s: left %q, %v", c.says, cores, err)
		}
	}
}

// TestOnlyTheNewestCrashCounts ends a run with a crash, an orderly stop, a kill and
// another crash, and continues the run after each of the first three. The state of the
// run must always show how the newest process ended.
func TestOnlyTheNewestCrashCounts(t *testing.T) {
	inEmptyFolder(t, "endless.yaml", endless)
	for _, c := range []struct {
		signal syscall.Signal
		shows  string
		logs   int // crash logs at the end
	}{
		{syscall.SIGQUIT, "crashed", 1}, {syscall.SIGTERM, "interrupted", 1}, {syscall.SIGKILL, "stale", 2}, {syscall.SIGQUIT, "crashed", 2},
	} {
		p := start(t, "run", "endless.yaml")
		p.until("a step", stepAfter(0))
		p.signal(c.signal)
		p.end()
		s, err := standingOf("runs/endless")
		if err != nil || s.shown() != c.shows {
			t.Errorf("after %v: %q, %v; want %s", c.signal, s.shown(), err, c.shows)
		}
		if logs := crashLogs("runs/endless"); len(logs) != c.logs {
			t.Errorf("after %v: %q, want %d", c.signal, logs, c.logs)
		}
	}
}

// TestCoreOnlyOnRequest checks that a process turns off core dumps, unless
// GOTRACEBACK=crash asks for them.
func TestCoreOnlyOnRequest(t *testing.T) {
	inEmptyFolder(t, "endless.yaml", endless)
	for _, c := range []struct{ traceback, want string }{{"", "0"}, {"all", "0"}, {"crash", "4096"}} {
		command := exec.Command("sh", "-c", "ulimit -c 8; exec headroom run endless.yaml --fresh --json") // blocks of 512 bytes
		command.Env = append(os.Environ(), "GOTRACEBACK="+c.traceback)
		p := begin(t, command)
		p.until("a step", stepAfter(0))
		limits, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(p.cmd.Process.Pid), "limits"))
		if err != nil {
			t.Skipf("SKIPPED: %v", err)
		}
		_, after, _ := strings.Cut(string(limits), "Max core file size")
		if fields := strings.Fields(after); len(fields) == 0 || fields[0] != c.want {
			t.Errorf("GOTRACEBACK=%s: core limit %.40q, want %s", c.traceback, after, c.want)
		}
		p.signal(os.Interrupt)
		p.end()
	}
}

// TestTooFewFiles sets a limit on open files at which the runtime would crash. headroom
// must return a usage error instead.
func TestTooFewFiles(t *testing.T) {
	inEmptyFolder(t, "endless.yaml", endless)
	for _, command := range []string{"run", "find"} {
		p := begin(t, exec.Command("sh", "-c", "ulimit -n 6; exec headroom "+command+" endless.yaml"))
		if got := p.end(); got != 2 || !strings.Contains(p.stderr.String(), "may open only 6 files") || strings.Contains(p.stderr.String(), "goroutine ") {
			t.Errorf("%s: exit status %d, want 2\n%s", command, got, p.stderr.String())
		}
	}
}

// TestTheLoopStartsAgain runs the loop of docs/overnight.md with a stub for headroom that
// ends in each possible way in turn. Only a crash or a kill may make the loop start it
// again.
func TestTheLoopStartsAgain(t *testing.T) {
	text, err := os.ReadFile("../../docs/overnight.md")
	if err != nil {
		t.Fatal(err)
	}
	_, after, found := strings.Cut(string(text), "#!/bin/sh\n# again.sh")
	loop, _, ended := strings.Cut(after, "```")
	if !found || !ended {
		t.Fatal("docs/overnight.md has no again.sh")
	}
	inEmptyFolder(t, "again.sh", strings.Replace(loop[strings.Index(loop, "\n"):], "sleep 60", ":", 1))
	// The first call ends as asked; a second call means that the loop continued.
	const stub = "#!/bin/sh\n[ -e again ] && exit 0\n: >again\n"
	for end, restarts := range map[string]bool{
		"kill -ABRT $$": true, "kill -KILL $$": true, "exit 134": true, "exit 139": true, "kill -TERM $$": false,
		"exit 0": false, "exit 1": false, "exit 2": false, "exit 75": false, "exit 120": false, "exit 121": false, "exit 122": false,
	} {
		if err := os.WriteFile("headroom", []byte(stub+"echo >>starts\n"+end+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		_ = os.Remove("again")
		command := exec.Command("sh", "./again.sh", "my.yaml")
		command.Env = append(os.Environ(), "PATH=.:"+os.Getenv("PATH"))
		out, err := command.CombinedOutput()
		if again := err == nil && strings.Contains(string(out), "starting again"); again != restarts {
			t.Errorf("%s: started again: %v, want %v\n%s", end, again, restarts, out)
		}
	}
}

// TestTheUnitStartsAgain checks the exit statuses after which the systemd unit of
// docs/overnight.md is not started again. They must be those of all failures in [exits],
// except for an interrupt and a crash, which another start can cure.
func TestTheUnitStartsAgain(t *testing.T) {
	text, err := os.ReadFile("../../docs/overnight.md")
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(text), "RestartPreventExitStatus='")
	stays, _, _ := strings.Cut(after, "'")
	var want []string
	for _, e := range ui.Exits {
		if e.Code != 0 && e.Code != 75 && e.Code != ui.Signalled {
			want = append(want, strconv.Itoa(e.Code))
		}
	}
	if stays != strings.Join(want, " ") || !strings.Contains(string(text), "Restart=on-failure") {
		t.Errorf("the unit stays down after %q, want %q", stays, want)
	}
}

func TestCrashText(t *testing.T) {
	for report, want := range map[string]string{
		"": "",
		"panic: index out of range\n\ngoroutine 1 [running]:\nmain.main()\n":                                       "panic: index out of range",
		"SIGQUIT: quit\nPC=0x1 m=0\n":                                                                              "SIGQUIT: quit",
		"\nruntime stack:\nruntime.throw({0x1, 0x2})\n\t/go/panic.go:1 +0x1\n\ngoroutine 1 [running]:\na/b.F(0x1)": "fatal error in a/b.F",
		"\ngoroutine 6 [running]:\nruntime.fatal({0x1})\n\t/x (y)\ninternal/sync.fatal({0x1?})\na.(*M).f(0x1)\n":   "fatal error in a.(*M).f",
		"\nsomething else\n": "something else",
	} {
		if got := crashText(strings.NewReader(report)); got != want {
			t.Errorf("%q: %q, want %q", report, got, want)
		}
	}
}
