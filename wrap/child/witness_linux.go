package child

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// witness is a process in this process's own group. It receives what is sent to the whole group,
// and nothing else, and keeps all signals pending. So it shows whether a signal that this process
// has received was sent to the group, as by kill -INT -PGID, or to this process alone. The kernel
// tells a process nothing about that.
//
// Without a terminal, the command has a group of its own, and without headroom it would have been
// in this one. With a terminal, both share a group, and no witness is needed.
type witness struct {
	tree    *tree // which does not contain the witness
	trouble func(error)

	mu      sync.Mutex // guards the fields below
	process *os.Process
	stdin   *os.File // the process ends when it is closed, and so with this process
	over    bool     // dismissed
}

// newWitness starts a witness. Without one, a signal to the group reaches only the command's first
// process.
func newWitness(t *tree, trouble func(error)) *witness {
	w := &witness{tree: t, trouble: trouble}
	w.start()
	return w
}

// start starts the witness's process.
func (w *witness) start() {
	var err error
	if w.process, w.stdin, err = startWitness(); err != nil {
		w.trouble(fmt.Errorf("a signal to the whole process group will reach only the command's first process: %w", err))
		return
	}
	w.tree.aside.Store(int64(w.process.Pid))
}

// stop ends the witness's process, if there is one.
func (w *witness) stop() {
	if w.process == nil {
		return
	}
	_ = w.process.Kill()
	_, _ = w.process.Wait()
	_ = w.stdin.Close()
	w.process = nil
}

// dismiss ends the witness, which may be nil.
func (w *witness) dismiss() {
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stop()
	w.over = true
}

// seeing is how long a signal to the group may take to reach all of the group.
const seeing = 10 * time.Millisecond

// saw reports whether the signal s, which this process has just received, was sent to its whole
// group. w may be nil.
func (w *witness) saw(s syscall.Signal) bool {
	if w == nil {
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for began := time.Now(); w.process != nil && !w.over; time.Sleep(time.Millisecond) {
		if pending(w.process.Pid, s) {
			w.stop() // a second signal could not be told from this one
			w.start()
			return true
		}
		if time.Since(began) > seeing {
			break
		}
	}
	return false
}

// startWitness starts a program that does nothing, with all signals blocked.
func startWitness() (_ *os.Process, stdin *os.File, err error) {
	read, write, err := pipe()
	if err != nil {
		return nil, nil, err
	}
	defer read.Close() //nolint:errcheck // nothing was written to it
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, nil, err
	}
	defer null.Close()     //nolint:errcheck // nothing was written
	runtime.LockOSThread() // a process inherits the signals that its parent's thread blocks
	defer runtime.UnlockOSThread()
	var all, before unix.Sigset_t
	for i := range all.Val {
		all.Val[i] = ^all.Val[i]
	}
	if err := unix.PthreadSigmask(unix.SIG_BLOCK, &all, &before); err != nil {
		return nil, nil, err
	}
	p, err := os.StartProcess("/bin/sh", []string{"headroom-witness", "-c", "read -r _"}, &os.ProcAttr{Dir: "/", Env: []string{}, Files: []*os.File{read, null, null}})
	_ = unix.PthreadSigmask(unix.SIG_SETMASK, &before, nil)
	if err != nil {
		_ = write.Close()
		return nil, nil, err
	}
	return p, write, nil
}

// pending reports whether s is waiting to be delivered to a process.
func pending(pid int, s syscall.Signal) bool { return inSet(pid, "ShdPnd", s) }

// catches reports whether a process has a handler for s.
func catches(pid int, s syscall.Signal) bool { return inSet(pid, "SigCgt", s) }

// inSet reports whether s is in one of the sets of signals in /proc/PID/status.
func inSet(pid int, name string, s syscall.Signal) bool {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		return false
	}
	_, rest, _ := bytes.Cut(text, []byte("\n"+name+":"))
	word, _, _ := bytes.Cut(rest, []byte("\n"))
	set, err := strconv.ParseUint(string(bytes.TrimSpace(word)), 16, 64)
	return err == nil && set>>(uint(s)-1)&1 != 0
}
