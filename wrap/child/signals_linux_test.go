package child

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"headroom/wrap/wraptest"
)

// names is a script that prints the name of each signal that it gets. SIGIO ends it.
const names = `
for s in TERM HUP QUIT USR1 USR2 ALRM WINCH CONT INT XCPU; do trap "echo heard $s." $s; done
trap 'echo heard TSTP.' TSTP
trap 'echo bye; exit 7' IO
echo ready $$
while :; do sleep 60 & wait $!; kill $! 2>/dev/null; done`

// TestSignalsArePassedOn checks that the wrapper passes on each signal that it alone
// gets. When the script ends, its sleep process is still running, so headroom has to end
// that process, too.
func TestSignalsArePassedOn(t *testing.T) {
	p := onPipes(t, helper("wrap", "sh", "-c", names))
	p.out.await(t, "ready ")
	child := pidAfter(t, p.out.String(), "ready ")
	for _, s := range []syscall.Signal{
		syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2,
		syscall.SIGALRM, syscall.SIGWINCH, syscall.SIGCONT, syscall.SIGINT, syscall.SIGXCPU,
	} {
		name := signalName(s)
		p.signal(s)
		p.out.await(t, "heard "+name+".")
	}
	if err := syscall.Kill(child, syscall.SIGIO); err != nil {
		t.Fatal(err)
	}
	if code := p.status(); code != 7 || !strings.HasSuffix(p.out.String(), "bye\n") {
		t.Errorf("status %d, %q", code, p.out.String())
	}
	for _, line := range strings.Fields(p.out.String()) {
		if line != "heard" && strings.Count(p.out.String(), line+"\n") > 1 {
			t.Errorf("more than once: %s", line)
		}
	}
}

func signalName(s syscall.Signal) string {
	return map[syscall.Signal]string{
		syscall.SIGXCPU: "XCPU",
		syscall.SIGTERM: "TERM", syscall.SIGHUP: "HUP", syscall.SIGQUIT: "QUIT", syscall.SIGUSR1: "USR1", syscall.SIGUSR2: "USR2",
		syscall.SIGALRM: "ALRM", syscall.SIGWINCH: "WINCH", syscall.SIGCONT: "CONT", syscall.SIGINT: "INT",
	}[s]
}

func pidAfter(t *testing.T, text, what string) int {
	t.Helper()
	var pid int
	_, rest, _ := strings.Cut(text, what)
	if _, err := fmt.Sscan(rest, &pid); err != nil {
		t.Fatalf("no number after %q in %q", what, text)
	}
	return pid
}

// TestKeysReachTheChildOnce checks that the wrapper does not pass on the signals of
// Ctrl-C and Ctrl-\, which the terminal itself sends to the child. After all the keys,
// the test sends SIGUSR1 to the wrapper alone: any signals that the wrapper had passed on
// would arrive before SIGUSR1. Each key is typed many times, because two signals that
// arrive together may count as one.
func TestKeysReachTheChildOnce(t *testing.T) {
	p := onTerminal(t, helper("wrap", "sh", "-c", names))
	p.out.await(t, "ready ")
	child := pidAfter(t, p.out.String(), "ready ")
	const times = 30
	for key, name := range map[string]string{"\x03": "INT", "\x1c": "QUIT"} {
		for n := range times {
			p.key(key)
			wraptest.Eventually(t, "the key is heard", func() bool { return strings.Count(p.out.String(), "heard "+name) > n })
		}
	}
	p.signal(syscall.SIGUSR1)
	p.out.await(t, "heard USR1.")
	if err := syscall.Kill(child, syscall.SIGIO); err != nil {
		t.Fatal(err)
	}
	if code := p.status(); code != 7 {
		t.Errorf("status %d, %q", code, p.out.String())
	}
	for _, name := range []string{"INT", "QUIT"} {
		if n := strings.Count(p.out.String(), "heard "+name); n != times {
			t.Errorf("%s was heard %d times, typed %d times", name, n, times)
		}
	}
}

// TestIgnoredSignalsStayIgnored checks that a child ignores SIGHUP if the wrapper was
// started with SIGHUP ignored, as nohup does.
func TestIgnoredSignalsStayIgnored(t *testing.T) {
	c := launched(false, "sh", "-c", `trap "" HUP; exec "$@"`, "sh", "/proc/self/exe", "sh", "-c", `grep SigIgn /proc/self/status; echo ready; read line; echo "$line"`)
	exe, err := os.Readlink("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	c.Args[4], c.Env = exe, helper("wrap").Env
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	c.Stdin = read
	p := onPipes(t, c)
	p.out.await(t, "ready\n")
	p.signal(syscall.SIGHUP)
	if _, err := write.WriteString("went on\n"); err != nil {
		t.Fatal(err)
	}
	if code := p.status(); code != 0 || !strings.HasSuffix(p.out.String(), "0001\nready\nwent on\n") {
		t.Errorf("status %d, %q", code, p.out.String())
	}
}

// TestStillRunning checks that a child that keeps running after a request to end is
// reported once, together with how to end it. A child that has ended, or that headroom
// itself is ending, is not reported.
func TestStillRunning(t *testing.T) {
	type told struct {
		timers []func()
		said   []string
	}
	ask := func(t *testing.T, signals ...syscall.Signal) (*Child, *told) {
		var w told
		o := Options{Trouble: func(err error) { w.said = append(w.said, err.Error()) }}
		o.after = func(d time.Duration, f func()) stopper {
			if d != heeding {
				t.Errorf("it waits %v", d)
			}
			w.timers = append(w.timers, f)
			return time.NewTimer(0)
		}
		c, out := begun(t, o, "sh", "-c", `trap "" TERM INT HUP; echo ready; exec sleep 1000`)
		wraptest.Eventually(t, "it ignores signals", func() bool { text, _ := os.ReadFile(out); return string(text) == "ready\n" })
		for _, s := range signals {
			c.hear(s)
		}
		return c, &w
	}
	for first, name := range map[syscall.Signal]string{syscall.SIGTERM: "SIGTERM", syscall.SIGHUP: "SIGHUP", syscall.SIGINT: "SIGINT"} {
		c, w := ask(t, first, syscall.SIGTERM, syscall.SIGINT)
		if len(w.timers) != 1 {
			t.Fatalf("%v: %d timers", first, len(w.timers))
		}
		w.timers[0]()
		want := fmt.Sprintf("the command is still running 5 s after %s: headroom waits for it to end, and passes on any further %[1]s; kill -KILL %d ends it at once", name, c.Pid())
		if len(w.said) != 1 || w.said[0] != want {
			t.Errorf("%v: %q, want %q", first, w.said, want)
		}
		_ = c.Signal(syscall.SIGKILL)
		waited(t, c)
		if w.timers[0](); len(w.said) != 1 {
			t.Errorf("%v: of one that has ended: %q", first, w.said)
		}
	}
	c, w := ask(t, syscall.SIGTERM)
	c.Stop()
	if w.timers[0](); len(w.said) != 0 {
		t.Errorf("of one that headroom ends: %q", w.said)
	}
}

// TestNoRequestIsLost checks that a signal which arrives right before the listener stops
// is still handled.
func TestNoRequestIsLost(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	c, _ := begun(t, Options{}, "true")
	waited(t, c)
	for range 50 {
		c.stopped.Store(false)
		l := listen()
		if err := unix.Tgkill(os.Getpid(), unix.Gettid(), unix.SIGTERM); err != nil {
			t.Fatal(err)
		}
		l.stop()
		l.pass(c)
		if !c.stopped.Load() {
			t.Fatal("it was not heard")
		}
	}
}

// TestStopKey checks that, under a shell's job control, Ctrl-Z stops the wrapper and the
// child, and fg continues both.
func TestStopKey(t *testing.T) {
	p := onTerminal(t, helper("wrap", "sh", "-c", `echo ready $$; read line; echo "got $line"; exit 5`))
	p.out.await(t, "ready ")
	child := pidAfter(t, p.out.String(), "ready ")
	p.key("\x1a")
	p.out.await(t, "job stopped")
	wraptest.Eventually(t, "the child stops too", func() bool { return stateOf(child) == "T" })
	p.key("\n") // fg
	wraptest.Eventually(t, "the child continues", func() bool { return stateOf(child) == "S" })
	p.key("a line\n")
	if code := p.status(); code != 5 || !strings.Contains(p.out.String(), "got a line") {
		t.Errorf("status %d, %q", code, p.out.String())
	}
}

// TestStopThatStopsNothing checks that the wrapper goes on if the child does after SIGTSTP: it has a
// handler, or nobody could continue it, so that the kernel would not have stopped it.
func TestStopThatStopsNothing(t *testing.T) {
	for _, c := range []struct{ name, handler string }{
		{"a handler", "trap 'echo heard TSTP.' TSTP;"},
		{"nobody to continue it", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := onPipes(t, helper("wrap", "sh", "-c", "trap 'echo heard WINCH.' WINCH;"+c.handler+names[strings.Index(names, "trap 'echo bye"):]))
			p.out.await(t, "ready ")
			child := pidAfter(t, p.out.String(), "ready ")
			p.signal(syscall.SIGTSTP)
			if c.handler != "" {
				p.out.await(t, "heard TSTP.")
			}
			p.signal(syscall.SIGWINCH) // is passed on after SIGTSTP
			p.out.await(t, "heard WINCH.")
			if err := syscall.Kill(child, syscall.SIGIO); err != nil {
				t.Fatal(err)
			}
			if code := p.status(); code != 7 {
				t.Errorf("status %d, %q", code, p.out.String())
			}
		})
	}
}

// stateOf returns the letter for the state of a process from /proc/PID/stat, or "" if
// there is no such process.
func stateOf(pid int) string {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, rest, _ := strings.Cut(string(text), ") ")
	return rest[:min(1, len(rest))]
}

// TestWindowSize checks that the child is notified when the size of the terminal changes,
// and that it then reads the new size from each of its descriptors.
func TestWindowSize(t *testing.T) {
	p := onTerminal(t, helper("wrap", "sh", "-c", `
trap 'echo size $(stty size) $(stty size <&3)' WINCH; exec 3>&1; echo ready
while [ -z "$done" ]; do sleep 0.01; [ -e "$0" ] && done=1; done`, t.TempDir()+"/done"))
	p.out.await(t, "ready")
	for n := range uint16(20) { // the child may look before the wrapper does, or after
		if err := pty.Setsize(p.tty, &pty.Winsize{Rows: 100 + n, Cols: 71}); err != nil {
			t.Fatal(err)
		}
		p.out.await(t, fmt.Sprintf("size %d 71 %[1]d 71", 100+n))
	}
	if err := os.WriteFile(p.cmd.Args[len(p.cmd.Args)-1], nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if code := p.status(); code != 0 {
		t.Errorf("status %d, %q", code, p.out.String())
	}
}

// TestModesFollow checks that the user's terminal follows when the child changes terminal
// modes, whether through its output, as full-screen programs do, or through its input, as
// password prompts do.
func TestModesFollow(t *testing.T) {
	for _, c := range []struct{ change, on string }{
		{"-icanon", "<&1"}, {"-icanon", "<&2"}, {"-icanon", "<&0"}, {"-opost", "<&1"}, {"-ixon", "<&1"}, {"intr ^X", "<&2"},
	} {
		var out [2]string
		for i, wrapped := range []bool{false, true} {
			p := onTerminal(t, launched(wrapped, "sh", "-c", fmt.Sprintf(
				`read line; stty %s %s; echo 'changed.'; read line; stty -a; echo 'shown.'; read line; stty opost icanon ixon intr ^C %[2]s; echo 'as before.'; read line; stty -a; printf 'a\nb\n'`, c.change, c.on)))
			before := p.modes()
			p.key("go\n")
			wraptest.Eventually(t, "the terminal follows", func() bool { return p.modes() != before })
			p.out.await(t, "changed.") // otherwise the next key might be echoed before it
			p.key("x\n")
			p.out.await(t, "shown.") // otherwise output still on its way would be shown in the restored modes
			p.key("z\n")
			wraptest.Eventually(t, "the terminal follows back", func() bool { return p.modes() == before })
			p.out.await(t, "as before.")
			p.key("y\n")
			if code := p.status(); code != 0 {
				t.Errorf("status %d", code)
			}
			out[i] = p.out.String()
		}
		sameText(t, c.change+" "+c.on, out[0], out[1])
	}
}

func (p *program) modes() unix.Termios {
	p.t.Helper()
	modes, err := unix.IoctlGetTermios(int(p.tty.Fd()), unix.TCGETS)
	if err != nil {
		p.t.Fatal(err)
	}
	return *modes
}

// TestModesAfterASignal checks that the terminal's modes are restored after a child that
// changed them, such as a password prompt, was killed.
func TestModesAfterASignal(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := onTerminal(t, launched(false, "sh", "-c", `was=$(stty -g); `+helperMode+`=wrap "$0" sh -c 'stty raw -echo; kill -KILL $$'; echo status $?; [ "$(stty -g)" = "$was" ] && echo as it was`, exe))
	if code := p.status(); code != 0 || !strings.Contains(p.out.String(), "status 137\r\nas it was") {
		t.Errorf("status %d, %q", code, p.out.String())
	}
}
