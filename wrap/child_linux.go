package wrap

import (
	"errors"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"headroom/machine"
)

// Child is one life of a command, with everything that it starts. Its methods may be
// called from any goroutine, even after its end.
//
// It is a direct child of this process, in its foreground process group if there is
// a terminal, and cannot tell that it is wrapped: descriptors, environment, signals
// and the limits it inherits are the same as without headroom. Where a stream is
// recorded, a pipe stands in for a pipe or a file and a pseudo-terminal for a
// terminal. Signals that this process gets are passed on until the end. Two things
// differ on the pseudo-terminal, which is not the controlling terminal: it has no
// foreground process group to query, and no keystrokes to read; /dev/tty and stdin have
// both.
//
// While the child lives, this process adopts the orphans among its own descendants. So
// no process that should outlive the child may be started meanwhile; processes that ran
// before are left alone.
type Child struct {
	o       ChildOptions
	process *os.Process
	tty     *terminal // the controlling terminal, nil if there is none
	streams *streams
	tree    *tree
	begun   time.Time

	stopped  atomic.Bool
	ended    atomic.Bool   // the direct child has ended; its process group must not be signalled any more
	stopOnce sync.Once     // the first Stop
	killOnce sync.Once     // the kill after it
	killing  chan struct{} // closed by that kill
	patience atomic.Pointer[time.Timer]
	unheeded stopper // reports a signal that did not end the child; nil before the first signal. It belongs to the listener's goroutine, and then to finish

	done chan struct{} // closed when exit is set
	exit Exit
}

// alive is true while a child of this process lives.
var alive atomic.Bool

// Start starts a command. It returns once the program has been executed, with a
// *[StartError] if it cannot be; any other error means that headroom itself lacks
// something, such as a file descriptor. It must be followed by [Child.Wait].
func Start(c Command, o ChildOptions) (*Child, error) {
	path, err := c.program()
	if err != nil {
		return nil, err
	}
	if !alive.CompareAndSwap(false, true) {
		return nil, ErrBusy
	}
	child := &Child{o: o.withDefaults(), killing: make(chan struct{}), done: make(chan struct{}), tty: controlling()}
	if child.streams, err = openStreams(child.o); err != nil {
		child.tty.close()
		alive.Store(false)
		return nil, err
	}
	started := make(chan error)
	go child.live(c, path, started)
	if err := <-started; err != nil {
		return nil, err
	}
	return child, nil
}

// live runs the child from start to end, on one OS thread: when the thread that started
// a process ends, the kernel takes that for the death of its parent.
func (c *Child) live(command Command, path string, started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if c.o.Standby == nil {
		c.o.Standby = StandBy()
	}
	<-c.o.Standby.made
	signals, kills := c.o.Standby.signals, c.o.Standby.kills
	c.tree = newTree(c.o.Trouble)
	err := c.o.Before()
	if err == nil {
		err = c.execute(command, path)
	}
	c.streams.started()
	if err != nil {
		signals.stop()
		c.streams.close()
		c.tree.release()
		c.tty.close()
		alive.Store(false)
		started <- err
		return
	}
	c.tree.child = c.process.Pid
	go c.streams.copy()
	go signals.pass(c)
	go c.tree.reapOrphans()
	started <- nil

	state, err := c.process.Wait()
	c.exit.Began, c.exit.Seconds = c.begun, time.Since(c.begun).Seconds()
	c.ended.Store(true)
	if err != nil {
		c.o.Trouble(err)
	} else {
		c.exit.Code, c.exit.Signal = status(state)
	}
	c.tree.end(c.o.Grace, c.killing)
	c.finish(signals, kills)
}

// execute starts the program. A script whose first line names no interpreter is run
// by the shell, as nohup, env and time do.
func (c *Child) execute(command Command, path string) error {
	attributes := &os.ProcAttr{
		Dir: command.Dir, Env: command.environment(), Files: c.streams.files(),
		// A launcher passes SIGTERM on to its workers; if it were killed, they would live on.
		Sys: &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM, Setpgid: c.tty == nil},
	}
	c.begun = time.Now()
	var err error
	c.process, err = os.StartProcess(path, command.Args, attributes)
	if errors.Is(err, syscall.ENOEXEC) {
		shell := append([]string{"sh", path}, command.Args[1:]...)
		c.process, err = os.StartProcess("/bin/sh", shell, attributes)
	}
	if err == nil {
		return nil
	}
	var errno syscall.Errno
	if !errors.As(err, &errno) {
		return err
	}
	return &StartError{Program: command.Args[0], Code: 126, Err: errno}
}

// status is the exit status as a shell reports it, and the signal that ended a process,
// 0 if none did.
func status(state *os.ProcessState) (int, syscall.Signal) {
	if w, ok := state.Sys().(syscall.WaitStatus); ok && w.Signal() > 0 {
		return 128 + int(w.Signal()), w.Signal()
	}
	return state.ExitCode(), 0
}

// finish does what remains to be done once no process is left.
func (c *Child) finish(signals *listener, kills machine.Kills) {
	if timer := c.patience.Load(); timer != nil {
		timer.Stop()
	}
	c.exit.Tail = c.streams.drain(c.killing)
	signals.stop()
	<-signals.answered // otherwise a last-moment request to stop would be lost
	if c.unheeded != nil {
		c.unheeded.Stop()
	}
	if c.exit.Signal != 0 {
		c.tty.restore()
	}
	c.tty.close()
	if c.exit.Code != 0 { // what the kernel counted and allowed matters only after a failure
		c.exit.Ulimit = machine.Ulimit()
		risen := machine.CountKills().Since(kills)
		c.exit.Kernel = Kernel{GroupKills: risen.Group, SystemKills: risen.System}
	}
	c.exit.Stopped = c.stopped.Load()
	c.tree.release()
	alive.Store(false)
	close(c.done)
}

// Wait returns how the command ended, once none of its processes is left, all of its
// output has been passed on and its log is written. Ranks and GPUs are left to the
// caller to fill in. Every call returns the same, and all of them share one Tail.
func (c *Child) Wait() Exit {
	<-c.done
	return c.exit
}

// BreakLine reports whether the child's stderr is in the middle of a line, for example a
// progress bar, so that the caller must write a line break before a line of its own. If it
// reports true, it expects the caller to do so.
func (c *Child) BreakLine() bool { return c.streams.breakLine() }

// Done is closed when Wait would return at once.
func (c *Child) Done() <-chan struct{} { return c.done }

// Pid is the child's process id.
func (c *Child) Pid() int { return c.process.Pid }

// Signal sends a signal to the child, and to none of its descendants: passing it on is
// up to the child. A signal that comes too late is not an error.
func (c *Child) Signal(s syscall.Signal) error {
	if err := c.process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	return nil
}

// Stop asks the child to end, by sending SIGTERM to it alone: if its workers got the
// signal too, they would die while the trainer wants to save. When the options' Patience
// runs out, or at the second call, everything is killed. Stop does not block; once the
// child has ended, it does nothing.
func (c *Child) Stop() {
	first := false
	c.stopOnce.Do(func() {
		first = true
		c.stopped.Store(true)
		c.patience.Store(time.AfterFunc(c.o.Patience, c.kill))
		_ = c.Signal(syscall.SIGTERM)
		_ = c.Signal(syscall.SIGCONT) // a suspended process would not act on SIGTERM
	})
	if !first {
		c.kill()
	}
}

// kill ends the whole process tree now.
func (c *Child) kill() {
	select {
	case <-c.done:
		return
	default:
	}
	c.killOnce.Do(func() { close(c.killing) })
	if c.ended.Load() {
		return // the tree's own loop deals with what is left
	}
	if c.tty == nil {
		_ = syscall.Kill(-c.process.Pid, syscall.SIGKILL)
	}
	_ = c.process.Kill()
	c.tree.signal(syscall.SIGKILL)
}
