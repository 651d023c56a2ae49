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

// passed are the signals that a child gets when this process does: those that
// somebody sends. SIGTTIN and SIGTTOU are not among them, for the kernel sends them
// to the whole group, which they stop; nor are those that are about this process itself.
// Schedulers warn with SIGXCPU and SIGPWR, too. Each costs a start 0.2 ms, so the
// real-time signals, which nobody sends to a training, are left out.
var passed = []os.Signal{
	syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGINT, syscall.SIGUSR1, syscall.SIGUSR2,
	syscall.SIGALRM, syscall.SIGWINCH, syscall.SIGCONT, syscall.SIGTSTP, syscall.SIGXCPU, syscall.SIGPWR,
}

// listener holds the signals for a child.
type listener struct {
	in       chan os.Signal
	answered chan struct{} // closed when pass has ended
}

// listen begins before the child does, so that none is lost. What is ignored stays
// so, for the child too: nohup.
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

// stop gives the signals back. What came before is still passed on.
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
// the child, for both are in its foreground group: INT and QUIT are keys, and so is
// TSTP.
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
			key = false // the child may have looked before the twin had its size
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

// heeding is how long a child may go on after it was asked to end before that is said.
const heeding = 5 * time.Second

// waits tells once, some time after the first request to end, that the child goes on. It
// may be saving, and it may not have listened: that is for the user to judge, for headroom
// kills no child that the user has asked to end.
func (c *Child) waits(asked string) {
	if c.unheeded != nil {
		return
	}
	c.unheeded = c.o.after(heeding, func() {
		if c.ended.Load() || c.patience.Load() != nil { // or headroom itself ends it
			return
		}
		c.o.Trouble(fmt.Errorf("the command is still running %s after %s: headroom leaves it to the command to end, and only passes another %[2]s on; kill -KILL %d ends it at once",
			lasting(heeding.Seconds()), asked, c.Pid()))
	})
}

// suspend stops this process, and returns when it goes on. A signal to this very
// thread takes effect before the call returns. It is not SIGTSTP again, whose default
// Go does not restore once that signal was asked for.
func suspend() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	_ = unix.Tgkill(os.Getpid(), unix.Gettid(), unix.SIGSTOP)
}
