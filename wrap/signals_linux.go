package wrap

import (
	"os"
	"os/signal"
	"runtime"
	"syscall"

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
	case syscall.SIGINT, syscall.SIGQUIT:
		c.stopped.Store(true)
	case syscall.SIGTERM, syscall.SIGHUP:
		c.stopped.Store(true)
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

// suspend stops this process, and returns when it goes on. A signal to this very
// thread takes effect before the call returns. It is not SIGTSTP again, whose default
// Go does not restore once that signal was asked for.
func suspend() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	_ = unix.Tgkill(os.Getpid(), unix.Gettid(), unix.SIGSTOP)
}
