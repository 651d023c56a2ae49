package wrap

import (
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// passed lists the signals that are passed on to the child: those that somebody sends.
// SIGTTIN and SIGTTOU are not among them, because the kernel sends them to the whole
// group, which they stop; nor are those that are about this process itself. Schedulers
// warn with SIGXCPU and SIGPWR, too. Each signal costs a start 0.2 ms, so the real-time
// signals, which nobody sends to a training command, are left out.
var passed = []os.Signal{
	syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGINT, syscall.SIGUSR1, syscall.SIGUSR2,
	syscall.SIGALRM, syscall.SIGWINCH, syscall.SIGCONT, syscall.SIGTSTP, syscall.SIGXCPU, syscall.SIGPWR,
}

// listener receives the signals for a child.
type listener struct {
	in       chan os.Signal
	answered chan struct{} // closed when pass has returned
}

// listen is called before the child is started, so that no signal is lost. Signals that
// are ignored stay ignored, for the child too: nohup relies on that.
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

// stop stops listening. Signals that came before are still passed on.
func (l *listener) stop() {
	signal.Stop(l.in)
	close(l.in)
}

// pass passes signals on until stop.
func (l *listener) pass(c *Child) {
	defer close(l.answered)
	for s := range l.in {
		if s, ok := s.(syscall.Signal); ok {
			c.hear(s)
		}
	}
}

// hear acts on a signal to this process. One that the terminal sent has already reached
// the child, because both are in its foreground group: INT, QUIT and TSTP come from keys.
func (c *Child) hear(s syscall.Signal) {
	key := c.tty.foreground()
	switch s {
	case syscall.SIGINT:
		c.stopped.Store(true)
		if key {
			c.waits("Ctrl-C")
		} else {
			c.waits(unix.SignalName(s))
		}
	case syscall.SIGQUIT:
		c.stopped.Store(true)
	case syscall.SIGTERM, syscall.SIGHUP:
		c.stopped.Store(true)
		c.waits(unix.SignalName(s))
		key = false
	case syscall.SIGWINCH:
		if c.streams.resize() {
			key = false // the child may have asked for the size before the twin had it
		}
	case syscall.SIGTSTP:
	default:
		key = false
	}
	if !key {
		_ = c.Signal(s)
	}
	if s == syscall.SIGTSTP {
		suspend()
	}
}

// heeding is how long a child may keep running after it was asked to end before that is
// reported.
const heeding = 5 * time.Second

// waits reports once, some time after the first request to end, that the child is still
// running. It may be saving, or it may ignore the request: that is for the user to judge,
// since headroom kills no child that the user has asked to end.
func (c *Child) waits(asked string) {
	if c.unheeded != nil {
		return
	}
	c.unheeded = c.o.after(heeding, func() {
		if c.ended.Load() || c.patience.Load() != nil { // it has ended, or headroom itself is ending it
			return
		}
		c.o.Trouble(fmt.Errorf("the command is still running %s after %s: headroom waits for it to end, and passes on any further %[2]s; kill -KILL %d ends it at once",
			lasting(heeding.Seconds()), asked, c.Pid()))
	})
}

// suspend stops this process, and returns when it is continued. A signal to this very
// thread takes effect before the call returns. The signal is not SIGTSTP again, because
// Go does not restore its default action once a program has asked for it.
func suspend() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	_ = unix.Tgkill(os.Getpid(), unix.Gettid(), unix.SIGSTOP)
}
