package child

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"headroom/wrap/command"
	"headroom/wrap/wraptest"
)

// helperMode is the environment variable that turns this test binary into one of the
// programs below.
const helperMode = "HEADROOM_WRAP_HELPER"

func init() {
	mode, set := os.LookupEnv(helperMode)
	if !set {
		return
	}
	_ = os.Unsetenv(helperMode)
	mode, job, _ := strings.Cut(mode, ":")
	switch mode {
	case "wrap":
		os.Exit(wrapAndExit())
	case "shell":
		os.Exit(jobControl(job))
	}
	os.Exit(99)
}

// wrapAndExit is a minimal headroom. It runs its arguments as a command, and returns the
// command's exit status.
func wrapAndExit() int {
	o := Options{Trouble: func(err error) { fmt.Fprintln(os.Stderr, "trouble:", err) }}
	if name := os.Getenv("WRAP_LOG"); name != "" {
		log, err := os.Create(name)
		if err != nil {
			panic(err)
		}
		o.Log = log
	}
	_, o.Leave = os.LookupEnv("WRAP_LEAVE")
	c, err := Start(command.Line{Args: os.Args[1:], Env: os.Environ()}, o)
	if failed := (*command.StartError)(nil); errors.As(err, &failed) {
		return failed.Code
	} else if err != nil {
		panic(err)
	}
	exit := c.Wait()
	if name := os.Getenv("WRAP_EXIT"); name != "" {
		text, _ := json.Marshal(exit)
		_ = os.WriteFile(name, text, 0o600)
	}
	return exit.Code
}

// jobControl does what the shell of a terminal does. It runs its second argument, with the
// rest as the arguments, as a foreground job in the given helper mode, if any. Each time that
// the job stops, it reads one byte from stdin and resumes the job.
//
// When the job is over, it closes its terminal and then waits until file 3 is closed at the
// other end. When the leader of a session ends, the kernel discards what the terminal has not
// yet passed on, so the leader must not end before the test has read the output.
func jobControl(mode string) int {
	signal.Ignore(syscall.SIGTTOU)
	syscall.CloseOnExec(3)
	if mode != "" {
		_ = os.Setenv(helperMode, mode)
	}
	attributes := &os.ProcAttr{Env: os.Environ(), Files: []*os.File{os.Stdin, os.Stdout, os.Stderr}}
	attributes.Sys = &syscall.SysProcAttr{Setpgid: true, Foreground: true, Ctty: 0}
	job, err := os.StartProcess(os.Args[1], os.Args[2:], attributes)
	if err != nil {
		panic(err)
	}
	signal.Ignore(syscall.SIGTSTP) // only after the job has started, or the job would inherit it
	for {
		var w syscall.WaitStatus
		if _, err := syscall.Wait4(job.Pid, &w, syscall.WUNTRACED, nil); err != nil {
			panic(err)
		}
		if !w.Stopped() {
			for _, f := range attributes.Files {
				_ = f.Close()
			}
			var none [1]byte
			_, _ = os.NewFile(3, "gate").Read(none[:]) // returns once the test has closed its end
			if w.Signal() > 0 {
				return 128 + int(w.Signal())
			}
			return w.ExitStatus()
		}
		_ = unix.IoctlSetPointerInt(0, unix.TIOCSPGRP, os.Getpid())
		fmt.Println("job stopped")
		var answer [1]byte
		_, _ = os.Stdin.Read(answer[:])
		_ = unix.IoctlSetPointerInt(0, unix.TIOCSPGRP, job.Pid)
		_ = syscall.Kill(-job.Pid, syscall.SIGCONT)
	}
}

// program is a program that a test runs, wrapped or not.
type program struct {
	t   *testing.T
	cmd *exec.Cmd
	out output
	err output
	tty *os.File      // the test's end of its terminal; nil if it has none
	eof chan struct{} // closed at the end of the terminal's output

	unread *os.File // closed once that output has been read; nil if it has no terminal
}

// output collects what is written to it, and lets a test wait for more.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
	more chan struct{} // closed and replaced at each write
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.more != nil {
		close(o.more)
	}
	o.more = make(chan struct{})
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// await returns once text has been written, and fails the test if that takes longer than limit.
func (o *output) await(t *testing.T, text string) {
	t.Helper()
	late := time.After(wraptest.Limit)
	for {
		o.mu.Lock()
		found := strings.Contains(o.text.String(), text)
		if o.more == nil {
			o.more = make(chan struct{})
		}
		more := o.more
		o.mu.Unlock()
		if found {
			return
		}
		select {
		case <-more:
		case <-late:
			t.Fatalf("no %q within %v in %q", text, wraptest.Limit, o.String())
		}
	}
}

func helper(mode string, args ...string) *exec.Cmd {
	c := exec.Command("/proc/self/exe", args...)
	c.Args[0] = "helper"
	c.Env = append(slices.Clip(os.Environ()), helperMode+"="+mode, "GORACE=atexit_sleep_ms=0")
	return c
}

// launched returns a command that runs its arguments directly, or wrapped.
func launched(wrapped bool, args ...string) *exec.Cmd {
	if wrapped {
		return helper("wrap", args...)
	}
	return exec.Command(args[0], args[1:]...)
}

// onPipes starts a program with pipes for its output, in a session of its own, so without
// a terminal.
func onPipes(t *testing.T, c *exec.Cmd) *program {
	t.Helper()
	p := &program{t: t, cmd: c, eof: make(chan struct{})}
	close(p.eof) // cmd.Wait itself waits for the end of the output
	c.Stdout, c.Stderr = &p.out, &p.err
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	p.begin()
	return p
}

// setModes changes the modes of a terminal.
func setModes(t *testing.T, terminal *os.File, change func(*unix.Termios)) {
	t.Helper()
	modes, err := unix.IoctlGetTermios(int(terminal.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	change(modes)
	if err := unix.IoctlSetTermios(int(terminal.Fd()), unix.TCSETS, modes); err != nil {
		t.Fatal(err)
	}
}

// onTerminal starts a program as the foreground job of a shell, on a terminal of 40 rows and
// 123 columns. The terminal does not echo, because an echo could appear anywhere among the
// output.
func onTerminal(t *testing.T, c *exec.Cmd) *program {
	t.Helper()
	mode := "shell"
	env := slices.DeleteFunc(slices.Clone(c.Environ()), func(variable string) bool {
		its, is := strings.CutPrefix(variable, helperMode+"=")
		if is {
			mode += ":" + its
		}
		return is
	})
	shell := helper(mode, append([]string{c.Path}, c.Args...)...)
	shell.Env = append(env, helperMode+"="+mode)
	p := &program{t: t, cmd: shell, eof: make(chan struct{})}
	master, slave, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	if err := pty.Setsize(master, &pty.Winsize{Rows: 40, Cols: 123}); err != nil {
		t.Fatal(err)
	}
	setModes(t, slave, func(modes *unix.Termios) { modes.Lflag &^= unix.ECHO })
	read, unread, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	shell.Stdin, shell.Stdout, shell.Stderr, shell.ExtraFiles = slave, slave, slave, []*os.File{read}
	shell.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: 0}
	p.tty, p.unread = master, unread
	p.begin()
	t.Cleanup(func() { _ = master.Close(); _ = unread.Close() })
	go func() {
		defer close(p.eof)
		_, _ = io.Copy(&p.out, master)
	}()
	_ = slave.Close()
	_ = read.Close()
	return p
}

// pid returns the process ID of the program itself, which on a terminal leads the group in
// the foreground.
func (p *program) pid() int {
	if p.tty != nil {
		if group, err := unix.IoctlGetInt(int(p.tty.Fd()), unix.TIOCGPGRP); err == nil && group > 0 {
			return group
		}
	}
	return p.cmd.Process.Pid
}

func (p *program) begin() {
	p.t.Helper()
	if err := p.cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	late := time.AfterFunc(wraptest.Limit, func() { _ = syscall.Kill(-p.pid(), syscall.SIGKILL) })
	p.t.Cleanup(func() { late.Stop(); _ = p.cmd.Process.Kill() })
}

func (p *program) signal(s syscall.Signal) {
	p.t.Helper()
	if err := syscall.Kill(p.pid(), s); err != nil {
		p.t.Fatal(err)
	}
}

// key enters s on the terminal, as a keyboard would.
func (p *program) key(s string) {
	p.t.Helper()
	if _, err := p.tty.WriteString(s); err != nil {
		p.t.Fatal(err)
	}
}

// status waits for the program to end, and returns its exit status as a shell reports it.
func (p *program) status() int {
	p.t.Helper()
	select {
	case <-p.eof:
	case <-time.After(wraptest.Limit):
		p.t.Fatal("its terminal stays open")
	}
	if p.unread != nil {
		_ = p.unread.Close()
	}
	err := p.cmd.Wait()
	if failed := (*exec.ExitError)(nil); err != nil && !errors.As(err, &failed) {
		p.t.Fatal(err)
	}
	code, _ := status(p.cmd.ProcessState)
	return code
}
