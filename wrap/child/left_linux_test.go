package child

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"headroom/machine"
	"headroom/wrap/wraptest"
)

// TestWhatIsLeftGoesOn checks that with Leave all that a child leaves behind goes on, whatever its
// process group, and is named.
func TestWhatIsLeftGoesOn(t *testing.T) {
	ready := filepath.Join(t.TempDir(), "ready")
	c, out := begun(t, Options{Leave: true}, "sh", "-c", forest+`while ! [ -e "$0" ]; do sleep 0.01; done; exit 4`, ready)
	numbers := grown(t, out)
	if err := os.WriteFile(ready, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	exit := waited(t, c)
	if exit.Code != 4 || exit.Stopped {
		t.Errorf("%+v", exit)
	}
	for _, number := range numbers {
		pid, _ := strconv.Atoi(number)
		at := slices.IndexFunc(c.Left(), func(l Left) bool { return l.PID == pid })
		if at < 0 || c.Left()[at].Name == "" || !c.Left()[at].Runs() {
			t.Errorf("process %s is not among %+v, or was ended", number, c.Left())
		}
	}
	var all []string
	for _, l := range c.Left() { // parents first, which would replace a child
		all = append(all, strconv.Itoa(l.PID))
	}
	wraptest.Killed(t, all...)
}

// TestWhatEndsByItselfIsNotLeft checks that the tee of a script that writes a log with it, and
// that ends with the script, does not count as left behind, and that its output is not lost.
func TestWhatEndsByItselfIsNotLeft(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	c, name := begun(t, Options{Leave: true}, "sh", "-c", `cat "$0" & exec >"$0"; echo passed through`, fifo)
	exit := waited(t, c)
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	out := string(text)
	if len(c.Left()) != 0 || out != "passed through\n" || string(exit.Tail) != out {
		t.Errorf("%+v, %q", exit, out)
	}
}

// TestAChattyProcessIsLeft checks that a process that writes without end does not keep the wrapper
// from ending.
func TestAChattyProcessIsLeft(t *testing.T) {
	c, _ := begun(t, Options{Leave: true}, "sh", "-c", `setsid yes & exit 3`)
	exit := waited(t, c)
	if exit.Code != 3 || len(c.Left()) != 1 || c.Left()[0].Name != "yes" {
		t.Errorf("%+v", exit)
	}
	for _, l := range c.Left() {
		wraptest.Killed(t, strconv.Itoa(l.PID))
	}
}

// upload is a script that leaves a process behind. The process prints when $0 can be read, once
// for each line, and reports to $1 whether it could.
const upload = `
trap : INT
setsid sh -c 'echo pid $$; exec 3<"$0"; while read line <&3; do echo $line; echo $line >&2; done; echo all >"$1"' "$0" "$1" &
while ! [ -s "$1.up" ]; do sleep 0.01; [ -e "$0" ] && echo up >"$1.up"; done; echo done`

// TestWhatIsLeftKeepsItsOutput checks that a process that is left behind can print as long as it
// wants, as it could without the wrapper, although the wrapper has ended. What passes its output on
// ends with it.
func TestWhatIsLeftKeepsItsOutput(t *testing.T) {
	for _, terminal := range []bool{false, true} {
		t.Run(fmt.Sprint("terminal ", terminal), func(t *testing.T) {
			fifo, told := filepath.Join(t.TempDir(), "fifo"), filepath.Join(t.TempDir(), "told")
			if err := syscall.Mkfifo(fifo, 0o600); err != nil {
				t.Fatal(err)
			}
			t.Setenv("WRAP_LEAVE", "1")
			wrapper := helper("wrap", "sh", "-c", upload, fifo, told)
			var p *program
			if terminal {
				p = onTerminal(t, wrapper)
			} else {
				p = onPipes(t, wrapper)
			}
			feed, err := os.OpenFile(fifo, os.O_RDWR, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer feed.Close() //nolint:errcheck // a test's
			p.out.await(t, "done")
			p.out.await(t, "pid ")
			left := strconv.Itoa(pidAfter(t, p.out.String(), "pid "))
			wraptest.Killed(t, left)
			wrapping := strconv.Itoa(p.pid())
			wraptest.Eventually(t, "the wrapper ends", func() bool { return wraptest.Gone(wrapping) || terminal && strconv.Itoa(p.pid()) != wrapping })
			for _, line := range []string{"one", "two"} {
				if _, err := feed.WriteString(line + "\n"); err != nil {
					t.Fatal(err)
				}
				p.out.await(t, line)
			}
			if wraptest.Gone(left) {
				t.Error("the process was ended")
			}
			_ = feed.Close()
			wraptest.Eventually(t, "it could print everything", func() bool { text, _ := os.ReadFile(told); return string(text) == "all\n" })
			if code := p.status(); code != 0 { // returns once nobody has the output open any more
				t.Errorf("status %d", code)
			}
		})
	}
}

// TestWhatIsLeftNoticesItsReader checks that a process that is left behind gets SIGPIPE when the
// reader of its output has gone away, as it would without the wrapper.
func TestWhatIsLeftNoticesItsReader(t *testing.T) {
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	c, _ := begun(t, Options{Leave: true, Stdout: write, Stderr: write}, "sh", "-c", `setsid sh -c 'while :; do echo more; done' & exit 0`)
	over := make(chan struct{})
	go func() {
		defer close(over)
		_, _ = io.Copy(io.Discard, read)
	}()
	exit := waited(t, c)
	if len(c.Left()) == 0 {
		t.Fatalf("%+v", exit)
	}
	wraptest.Killed(t, strconv.Itoa(c.Left()[0].PID))
	_ = write.Close()
	if !c.Left()[0].Runs() {
		t.Error("it ended although its output was read")
	}
	_ = read.Close()
	<-over
	wraptest.Eventually(t, "it ends", func() bool { return !c.Left()[0].Runs() })
}

// TestAnInterruptEndsTheGroup checks that after a request to stop what the command left behind in
// its own process group is ended, and a process with a session of its own is not.
func TestAnInterruptEndsTheGroup(t *testing.T) {
	t.Setenv("WRAP_LEAVE", "1")
	p := onPipes(t, helper("wrap", "sh", "-c", `
trap 'exit 5' TERM
sh -c 'echo in $$.; exec sleep 1000 >/dev/null 2>&1' &
setsid sh -c 'echo out $$.; exec sleep 1000 >/dev/null 2>&1' &
while :; do sleep 0.01; done`))
	p.out.await(t, "in ")
	p.out.await(t, "out ")
	wraptest.Eventually(t, "both pids", func() bool { return strings.Count(p.out.String(), ".") == 2 })
	in, out := strconv.Itoa(pidAfter(t, p.out.String(), "in ")), strconv.Itoa(pidAfter(t, p.out.String(), "out "))
	wraptest.Killed(t, in, out)
	p.signal(syscall.SIGTERM)
	if code := p.status(); code != 5 || !wraptest.Gone(in) || wraptest.Gone(out) {
		t.Errorf("status %d, in the group: gone %v, outside: gone %v", code, wraptest.Gone(in), wraptest.Gone(out))
	}
}

// TestASignalToTheGroup checks that a signal to the wrapper's whole process group reaches the
// command's whole group once, and a signal to the wrapper alone only the command itself, as they
// would without the wrapper.
func TestASignalToTheGroup(t *testing.T) {
	for _, wrapped := range []bool{false, true} {
		p := onPipes(t, launched(wrapped, "sh", "-c", `
heard() { echo "$1 heard $2."; }
sh -c 'for s in INT TERM USR1; do trap "echo second heard $s." $s; done; trap "exit 0" IO; echo second ready; while :; do sleep 0.01; done' &
for s in INT TERM USR1; do trap "heard first $s" $s; done; trap 'kill -IO $second; wait $second; exit 6' IO
second=$!; echo first $$.; while :; do sleep 0.01; done`))
		p.out.await(t, "second ready")
		p.out.await(t, "first ")
		wraptest.Eventually(t, "the pid", func() bool { return strings.Contains(p.out.String(), ".") })
		first := pidAfter(t, p.out.String(), "first ")
		want := map[string]int{}
		heard := func(line string) {
			want[line]++
			wraptest.Eventually(t, line, func() bool { return strings.Count(p.out.String(), line) >= want[line] })
		}
		for _, s := range []struct {
			signal syscall.Signal
			name   string
		}{{syscall.SIGTERM, "TERM"}, {syscall.SIGUSR1, "USR1"}, {syscall.SIGTERM, "TERM"}} {
			if err := syscall.Kill(-p.pid(), s.signal); err != nil {
				t.Fatal(err)
			}
			heard("first heard " + s.name + ".")
			heard("second heard " + s.name + ".")
			p.signal(s.signal)
			heard("first heard " + s.name + ".")
		}
		if err := syscall.Kill(first, syscall.SIGIO); err != nil {
			t.Fatal(err)
		}
		if code := p.status(); code != 6 {
			t.Errorf("wrapped: %v: status %d, %q", wrapped, code, p.out.String())
		}
		for line, n := range want {
			if got := strings.Count(p.out.String(), line); got != n {
				t.Errorf("wrapped: %v: %d × %q, want %d", wrapped, got, line, n)
			}
		}
	}
}

// TestTheWitnessIsGone checks that no witness outlives its child, and that it holds nothing up.
func TestTheWitnessIsGone(t *testing.T) {
	wraptest.Eventually(t, "what earlier tests started has ended", childless)
	c, _ := begun(t, Options{Leave: true}, "true")
	exit := waited(t, c)
	if exit.Code != 0 || len(c.Left()) != 0 || !childless() {
		t.Errorf("%+v, children: %v", exit, ownChildren())
	}
	if _, err := exec.LookPath("/bin/sh"); err != nil {
		t.Skip("SKIPPED: there is no /bin/sh")
	}
	c, _ = begun(t, Options{}, "sleep", "1000")
	if c.tty != nil {
		t.Skip("SKIPPED: with a terminal there is no witness")
	}
	witness := strconv.FormatInt(c.tree.aside.Load(), 10)
	if wraptest.Gone(witness) {
		t.Error("there is no witness")
	}
	c.Stop()
	c.Stop()
	waited(t, c)
	if !wraptest.Gone(witness) {
		t.Error("the witness is left")
	}
}

// TestTheWitnessIsNotOfTheCommand checks that the process which watches for signals to the group is not
// among those of the command.
func TestTheWitnessIsNotOfTheCommand(t *testing.T) {
	c, out := begun(t, Options{}, "sh", "-c", `echo pid $$; exec sleep 1000`)
	wraptest.Eventually(t, "the command", func() bool { text, err := os.ReadFile(out); return err == nil && len(text) > 0 })
	c.witness.mu.Lock()
	witness := c.witness.process.Pid
	c.witness.mu.Unlock()
	if p, ok := machine.LookAtProcess(witness); !ok || p.Parent != os.Getpid() {
		t.Fatalf("the witness is %+v", p)
	}
	for _, p := range c.tree.left() {
		if p.PID == witness {
			t.Error("the witness is one of the command's processes")
		}
	}
}

// TestKilledWithWhatMayGoOn checks that a command which has to be killed is killed with its process
// group, and that what has left the group goes on.
func TestKilledWithWhatMayGoOn(t *testing.T) {
	c, out := begun(t, Options{Leave: true}, "sh", "-c",
		`trap "" TERM; setsid sh -c 'echo away $$; exec sleep 1000' & sh -c 'echo group $$; exec sleep 1000' & while :; do sleep 1000; done`)
	var away, group int
	wraptest.Eventually(t, "two processes", func() bool {
		text, err := os.ReadFile(out)
		for line := range strings.Lines(string(text)) {
			_, _ = fmt.Sscanf(line, "away %d", &away)
			_, _ = fmt.Sscanf(line, "group %d", &group)
		}
		return err == nil && away > 0 && group > 0
	})
	wraptest.Killed(t, strconv.Itoa(away))
	c.Stop()
	c.Stop()
	exit := waited(t, c)
	if exit.Signal != syscall.SIGKILL {
		t.Errorf("%+v", exit)
	}
	if p, ok := machine.LookAtProcess(group); ok && !p.Dead {
		t.Error("a process of the group goes on")
	}
	if p, ok := machine.LookAtProcess(away); !ok || p.Dead {
		t.Error("a process that had left the group was killed")
	}
}
