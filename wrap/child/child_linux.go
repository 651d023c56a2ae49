package child

import (
	"errors"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"headroom/machine"
	"headroom/wrap/command"
)

// Child is one attempt of a command, with all the processes that it starts. Its methods may
// be called from any goroutine, even after its end.
//
// The command is a direct child of this process. With a controlling terminal, the two
// share a process group. The command cannot tell that it is wrapped: its descriptors,
// environment, signals and inherited limits are the same as without headroom. Signals
// that this process receives are passed on to the child until it ends. A stream that is
// recorded is replaced: a pipe or a file by a pipe, and a terminal by a pseudo-terminal.
// The pseudo-terminal is not the controlling terminal, so it differs in two ways: it has
// no foreground process group to query, and no keystrokes to read. /dev/tty and stdin
// have both.
//
// While the child lives, this process adopts the orphans among its own descendants. Once the
// child has ended, it ends them, or leaves them running if [Options].Leave is set.
// Processes that were running before the child are left alone.
type Child struct {
	o       Options
	process *os.Process
	tty     *terminal // the controlling terminal; nil if there is none
	streams *streams
	tree    *tree
	witness *witness // tells what was sent to the whole process group; nil with a terminal
	begun   time.Time

	stopped  atomic.Bool
	asked    atomic.Bool                // the request to stop came from outside, as a signal to this process
	ended    atomic.Bool                // the direct child has ended; its process group must not be signalled any more
	stopOnce sync.Once                  // guards the first Stop
	killOnce sync.Once                  // guards closing killing
	killing  chan struct{}              // closed when the whole process tree is to be killed
	patience atomic.Pointer[time.Timer] // kills the tree some time after the first Stop; nil before that
	unheeded stopper                    // reports that the child runs on after a request to end; nil before the first one. Used by the listener's goroutine, and then by finish

	done chan struct{} // closed when exit and left are set
	exit command.Exit
	left []Left // set with exit
}

// alive is true while a child of this process lives.
var alive atomic.Bool

// Start starts a command and returns once its program has been executed. The caller must
// then call [Child.Wait]. The error is a *[command.StartError] if the program cannot be executed,
// [ErrBusy] if another child of this process lives, or the error that o.Before returned.
// Any other error means that headroom itself lacks something, such as a file descriptor.
func Start(c command.Line, o Options) (*Child, error) {
	path, err := c.Program()
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

// live runs the child from start to end, and stays on one OS thread: when the thread that
// started a process ends, the kernel acts as if the parent had died, and sends the
// process the signal in Pdeathsig.
func (c *Child) live(line command.Line, path string, started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	signals, kills := listen(), machine.CountKills()
	c.tree = newTree(c.o.Trouble)
	err := c.o.Before()
	if err == nil {
		err = c.execute(line, path)
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
	if c.tty == nil {
		c.witness = newWitness(c.tree, c.o.Trouble)
	}
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
	c.tree.rest()
	c.witness.dismiss()
	var left []machine.Process
	if !c.o.Leave {
		c.tree.end(c.o.Grace, c.killing, everyProcess)
	} else if left = c.tree.settle(settling); len(left) > 0 && c.asked.Load() {
		c.tree.end(c.o.Grace, c.killing, c.inGroup) // an interrupt ends the job, as a terminal's does
		left = c.tree.left()
	}
	c.finish(signals, kills, left)
}

// inGroup reports whether a process of the tree is in the command's process group. A process
// that was to outlive the command has usually left it (setsid, or a daemon).
func (c *Child) inGroup(p machine.Process) bool {
	if c.tty == nil {
		return p.Group == c.process.Pid
	}
	return p.Group == unix.Getpgrp()
}

// execute starts the program. If it is a script whose first line names no interpreter,
// the shell runs it, as it does under nohup, env and time.
func (c *Child) execute(line command.Line, path string) error {
	attributes := &os.ProcAttr{
		Dir: line.Dir, Env: line.Environment(), Files: c.streams.files(),
		// A launcher passes SIGTERM on to its workers. They would live on if the launcher were killed.
		Sys: &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM, Setpgid: c.tty == nil},
	}
	c.begun = time.Now()
	var err error
	c.process, err = os.StartProcess(path, line.Args, attributes)
	if errors.Is(err, syscall.ENOEXEC) {
		shell := append([]string{"sh", path}, line.Args[1:]...)
		c.process, err = os.StartProcess("/bin/sh", shell, attributes)
	}
	if err == nil {
		return nil
	}
	var errno syscall.Errno
	if !errors.As(err, &errno) {
		return err
	}
	return &command.StartError{Program: line.Args[0], Code: 126, Err: errno}
}

// status returns the exit status of a process as a shell reports it, and the signal that
// ended the process, or 0 if none did.
func status(state *os.ProcessState) (int, syscall.Signal) {
	if w, ok := state.Sys().(syscall.WaitStatus); ok && w.Signal() > 0 {
		return 128 + int(w.Signal()), w.Signal()
	}
	return state.ExitCode(), 0
}

// finish completes the Exit and releases everything, once no process of the tree is left but
// those in left, which go on without this process.
func (c *Child) finish(signals *listener, kills machine.Kills, left []machine.Process) {
	if timer := c.patience.Load(); timer != nil {
		timer.Stop()
	}
	c.exit.Tail = c.streams.drain(c.killing, c.o.Leave, c.o.Trouble)
	signals.stop()
	<-signals.answered // otherwise a last-moment request to stop would be lost
	if c.unheeded != nil {
		c.unheeded.Stop()
	}
	if c.exit.Signal != 0 {
		c.tty.restore()
	}
	c.tty.close()
	if c.exit.Code != 0 { // the kernel's counters and limits matter only after a failure
		c.exit.Ulimit = machine.Ulimit()
		risen := machine.CountKills().Since(kills)
		c.exit.Kernel = command.Kernel{GroupKills: risen.Group, SystemKills: risen.System}
	}
	c.exit.Stopped = c.stopped.Load()
	c.left = leave(left)
	c.tree.release()
	alive.Store(false)
	close(c.done)
}

// Wait blocks until none of the command's processes is left that this process is to end, all of
// its output has been passed on and its log is written. Then it returns how the command ended,
// except for Ranks and GPUs, which the caller fills in. Every call returns the same Exit, with
// the same Tail.
func (c *Child) Wait() command.Exit {
	<-c.done
	return c.exit
}

// Left returns the processes that the command left running, once Wait no longer blocks; none
// unless [Options].Leave is set.
func (c *Child) Left() []Left {
	<-c.done
	return c.left
}

// BreakLine reports whether the child's stderr is in the middle of a line, such as a
// progress bar. If so, the caller must write a line break before a line of its own.
// BreakLine assumes that the caller does so, and reports true only once for the same
// line.
func (c *Child) BreakLine() bool { return c.streams.breakLine() }

// Done returns a channel that is closed once Wait no longer blocks.
func (c *Child) Done() <-chan struct{} { return c.done }

// Pid returns the child's process id.
func (c *Child) Pid() int { return c.process.Pid }

// Signal sends a signal to the child alone. Whether its descendants get the signal is up
// to the child. It is not an error if the child has already ended.
func (c *Child) Signal(s syscall.Signal) error {
	if err := c.process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	return nil
}

// Stop asks the child to end, by sending SIGTERM to it alone: if its workers got the
// signal too, they would die while the trainer wants to save. When
// [Options].Patience runs out, or when Stop is called a second time, the whole
// process tree is killed, or its process group if [Options].Leave is set. Stop does not block. Once Done is closed, it does nothing.
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

// kill sends SIGKILL to the whole process tree, or to its process group if the rest may go on.
func (c *Child) kill() {
	select {
	case <-c.done:
		return
	default:
	}
	c.killOnce.Do(func() { close(c.killing) })
	if c.ended.Load() {
		return // tree.end kills the processes that are left
	}
	if c.tty == nil {
		_ = syscall.Kill(-c.process.Pid, syscall.SIGKILL)
	}
	_ = c.process.Kill()
	which := everyProcess
	if c.o.Leave {
		which = c.inGroup
	}
	c.tree.signal(syscall.SIGKILL, which)
}
