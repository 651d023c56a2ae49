package child

import (
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"headroom/machine"
)

// passed lists the signals that are passed on to the child: those that people and
// schedulers send. Schedulers use SIGXCPU and SIGPWR as warnings, too.
//
// SIGTTIN and SIGTTOU are left out, because the kernel sends them to the whole process
// group. Signals about this process itself are left out, too. So are the real-time
// signals, which nobody sends to a training command: each signal in the list adds 0.2 ms
// to a start.
var passed = []os.Signal{
	syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGINT, syscall.SIGUSR1, syscall.SIGUSR2,
	syscall.SIGALRM, syscall.SIGWINCH, syscall.SIGCONT, syscall.SIGTSTP, syscall.SIGXCPU, syscall.SIGPWR,
}

// listener receives the signals for a child.
type listener struct {
	in       chan os.Signal
	answered chan struct{} // closed when pass has returned
}

// listen starts to receive signals. It is called before the child is started, so that no
// signal is lost. Signals that are ignored stay ignored, in the child as well: nohup relies
// on that.
func listen() *listener {
	keepIgnored()
	l := &listener{in: make(chan os.Signal, 64), answered: make(chan struct{})}
	for _, s := range passed {
		if !signal.Ignored(s) {
			signal.Notify(l.in, s)
		}
	}
	return l
}

// stop stops listening. Signals received before are still passed on.
func (l *listener) stop() {
	signal.Stop(l.in)
	close(l.in)
}

// pass passes received signals on to c. It returns once stop has been called and all signals
// received before that have been passed on.
func (l *listener) pass(c *Child) {
	defer close(l.answered)
	for s := range l.in {
		if s, ok := s.(syscall.Signal); ok {
			c.hear(s)
		}
	}
}

// hear acts on a signal to this process, and passes it on to the child, or to the child's whole
// process group if it was sent to this process's whole group. SIGINT, SIGQUIT
// and SIGTSTP are not passed on if this process is in the terminal's foreground group: they
// then come from keys, and the terminal has sent them to the child as well.
func (c *Child) hear(s syscall.Signal) {
	key := c.tty.foreground()
	switch s {
	case syscall.SIGINT:
		c.interrupted()
		if key {
			c.waits("Ctrl-C")
		} else {
			c.waits(unix.SignalName(s))
		}
	case syscall.SIGQUIT:
		c.interrupted()
	case syscall.SIGTERM, syscall.SIGHUP:
		c.interrupted()
		c.waits(unix.SignalName(s))
		key = false
	case syscall.SIGWINCH:
		if c.streams.resize() {
			key = false // the child may have read the size before its own terminal had the new one
		}
	case syscall.SIGTSTP:
		if !key && orphaned() && !catches(c.Pid(), s) {
			return // without headroom, the kernel would ignore it
		}
	default:
		key = false
	}
	switch {
	case key:
	case c.witness.saw(s) && !c.ended.Load():
		_ = syscall.Kill(-c.process.Pid, s) // its group may be gone
	default:
		_ = c.Signal(s)
	}
	if s == syscall.SIGTSTP {
		go c.stopToo()
	}
}

// stopping is how long a child that gets SIGTSTP may take to stop: it may have to give its terminal back first.
const stopping = time.Second

// stopToo stops this process as soon as the child has stopped, if it does: it may have a handler for SIGTSTP, and go on.
func (c *Child) stopToo() {
	for range stopping / (10 * time.Millisecond) {
		p, ok := machine.LookAtProcess(c.Pid())
		if !ok || c.ended.Load() {
			return
		}
		if p.Stopped {
			suspend()
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// orphaned reports whether nobody in this session could continue this process's group after a stop, as far as its
// first process tells: the kernel does not let SIGTSTP stop such a group, which cron, systemd and setsid make.
func orphaned() bool {
	group, session := unix.Getpgrp(), sessionOf(0)
	parent := os.Getppid()
	for {
		p, ok := machine.LookAtProcess(parent)
		if !ok || p.Group != group {
			return !ok || sessionOf(parent) != session
		}
		parent = p.Parent
	}
}

func sessionOf(pid int) int {
	session, err := unix.Getsid(pid)
	if err != nil {
		return -1
	}
	return session
}

// interrupted records that the user, or the system, has asked the command to stop.
func (c *Child) interrupted() {
	c.stopped.Store(true)
	c.asked.Store(true)
}

// heeding is the time after which headroom reports that a child is still running although
// it was asked to end.
const heeding = 5 * time.Second

// waits schedules a single report, some time after the first request to end, that the
// child is still running. The child may be saving, or it may be ignoring the request. The
// user has to judge which, since headroom does not kill a child that the user asked to
// end.
func (c *Child) waits(asked string) {
	if c.unheeded != nil {
		return
	}
	c.unheeded = c.o.after(heeding, func() {
		if c.ended.Load() || c.patience.Load() != nil { // it has ended, or headroom itself is ending it
			return
		}
		c.o.Trouble(fmt.Errorf("the command is still running %.0f s after %s: headroom waits for it to end, and passes on any further %[2]s; kill -KILL %d ends it at once",
			heeding.Seconds(), asked, c.Pid()))
	})
}

// suspend stops this process, and returns when the process is continued. It signals its
// own thread, because such a signal takes effect before the call returns. It sends SIGSTOP
// and not SIGTSTP, because Go does not restore the default action of a signal once a
// program has asked to be notified of it.
func suspend() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	_ = unix.Tgkill(os.Getpid(), unix.Gettid(), unix.SIGSTOP)
}
