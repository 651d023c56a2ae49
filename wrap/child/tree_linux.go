package child

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"headroom/machine"
)

// tree is a child with all its descendants. The kernel makes orphans among the descendants
// children of this process, and they still belong to the tree. Other children that this
// process had before, and their descendants, do not.
type tree struct {
	child    int          // PID of the direct child; the tree does not reap it
	foreign  map[int]bool // PIDs of the children that this process had before
	aside    atomic.Int64 // PID of the witness, which is started after the tree has been made
	reaper   bool         // this process was a subreaper already
	children chan os.Signal
	quit     chan struct{} // closed to end reapOrphans
	quitted  chan struct{} // closed when reapOrphans has returned
	trouble  func(error)
	list     func() []machine.Process
}

// newTree prepares a tree for a child that has not been started yet. It makes this
// process a subreaper, so that the kernel gives it the orphans of the tree as children.
func newTree(trouble func(error)) *tree {
	t := &tree{
		foreign: map[int]bool{}, trouble: trouble,
		children: make(chan os.Signal, 1), quit: make(chan struct{}), quitted: make(chan struct{}), list: machine.Processes,
	}
	var before int32
	if err := unix.Prctl(unix.PR_GET_CHILD_SUBREAPER, uintptr(unsafe.Pointer(&before)), 0, 0, 0); err == nil {
		t.reaper = before != 0
	}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		trouble(fmt.Errorf("adopt orphans: %w", err))
	}
	if !childless() {
		for _, p := range machine.Processes() {
			t.foreign[p.PID] = p.Parent == os.Getpid()
		}
	}
	signal.Notify(t.children, syscall.SIGCHLD)
	return t
}

// release undoes newTree.
func (t *tree) release() {
	signal.Stop(t.children)
	if !t.reaper {
		_ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
	}
}

// reapInterval is the minimum time between two searches for dead orphans, which limits
// the cost if many processes die. A command that ends sooner incurs no such cost.
const reapInterval = time.Second

// reapOrphans reaps dead orphans, at most once every reapInterval, until end is called.
func (t *tree) reapOrphans() {
	defer close(t.quitted)
	pause := time.NewTimer(reapInterval)
	defer pause.Stop()
	for {
		select {
		case <-t.quit:
			return
		case <-pause.C:
		}
		select {
		case <-t.quit:
			return
		case <-t.children:
			t.left()
			pause.Reset(reapInterval)
		}
	}
}

// untilGivenUp is how long end waits for killed processes to disappear. A process that
// hangs in a driver never disappears.
const untilGivenUp = 10 * time.Second

// looksForNothing is how many process lists in a row must have no process of the tree
// before the tree counts as gone.
const looksForNothing = 3

// rest ends reapOrphans, once the direct child has ended.
func (t *tree) rest() {
	close(t.quit)
	<-t.quitted
}

// settling is how long a command's last processes, such as the tee that writes its log, may take to
// end by themselves before they count as left behind.
const settling = 200 * time.Millisecond

// settle waits until no process is left, but no longer than patience. It returns those that are left.
func (t *tree) settle(patience time.Duration) []machine.Process {
	late := time.NewTimer(patience)
	defer late.Stop()
	again := time.NewTicker(5 * time.Millisecond) // there is no signal when a grandchild ends
	defer again.Stop()
	for nothing := 0; !childless() && nothing < looksForNothing; {
		left := t.left()
		if len(left) == 0 {
			nothing++ // the list may have a gap
			continue
		}
		nothing = 0
		select {
		case <-late.C:
			return left
		case <-t.children:
		case <-again.C:
		}
	}
	return nil
}

// end ends those of the processes that are left after the direct child has ended for which
// which returns true. It sends them SIGTERM, and kills them once the time grace has passed or
// kill is closed. It returns when none of them is left, or when the only ones left cannot be
// killed.
func (t *tree) end(grace time.Duration, kill <-chan struct{}, which func(machine.Process) bool) {
	look := 5 * time.Millisecond // look regularly: there is no signal when a grandchild ends
	again := time.NewTimer(look)
	defer again.Stop()
	patience, how, given := time.NewTimer(grace), syscall.SIGTERM, time.Time{}
	defer patience.Stop()
	nothing := 0 // how many lists in a row had no process of the tree
	for first := true; !childless(); {
		left := slices.DeleteFunc(t.left(), func(p machine.Process) bool { return !which(p) })
		if len(left) > 0 {
			nothing = 0
		}
		switch {
		case len(left) == 0:
			// Either only foreign children are left, or the list has a gap: while it was being made, a
			// process forked another one and died, and neither of them is on the list.
			if nothing++; nothing == looksForNothing {
				return
			}
			continue
		case how == syscall.SIGKILL && time.Since(given) > untilGivenUp:
			t.trouble(fmt.Errorf("these processes could not be killed: %v", pids(left)))
			return
		case first || how == syscall.SIGKILL:
			send(left, how)
		}
		first = false
		again.Reset(look)
		look = min(2*look, 200*time.Millisecond)
		select {
		case <-kill:
			kill, how, given = nil, syscall.SIGKILL, time.Now()
		case <-patience.C:
			how, given = syscall.SIGKILL, time.Now()
		case <-t.children:
		case <-again.C:
		}
	}
}

// signal sends a signal to the processes of the tree for which which returns true.
func (t *tree) signal(s syscall.Signal, which func(machine.Process) bool) {
	send(slices.DeleteFunc(t.left(), func(p machine.Process) bool { return !which(p) }), s)
}

// everyProcess is true for all processes.
func everyProcess(machine.Process) bool { return true }

func send(to []machine.Process, s syscall.Signal) {
	for _, p := range to {
		_ = syscall.Kill(p.PID, s) // it may have ended by itself
		if s == syscall.SIGTERM {
			_ = syscall.Kill(p.PID, syscall.SIGCONT) // a stopped process acts on SIGTERM only after it is continued
		}
	}
}

// left returns the processes of the tree that are running now. It reaps dead orphans that
// it finds.
func (t *tree) left() []machine.Process {
	below := map[int][]machine.Process{}
	for _, p := range t.list() {
		below[p.Parent] = append(below[p.Parent], p)
	}
	var all []machine.Process
	todo := below[os.Getpid()]
	for len(todo) > 0 {
		p := todo[0]
		todo = todo[1:]
		if t.foreign[p.PID] || int64(p.PID) == t.aside.Load() {
			continue
		}
		todo = append(todo, below[p.PID]...)
		if !p.Dead {
			all = append(all, p)
		} else if p.Parent == os.Getpid() && p.PID != t.child {
			_, _ = syscall.Wait4(p.PID, nil, syscall.WNOHANG, nil)
		}
	}
	return all
}

// childless reports whether this process has no children at all, not even dead ones. It
// takes a single system call, whereas reading /proc takes milliseconds.
func childless() bool {
	for {
		err := unix.Waitid(unix.P_ALL, 0, nil, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
		if !errors.Is(err, syscall.EINTR) {
			return errors.Is(err, syscall.ECHILD)
		}
	}
}

func pids(all []machine.Process) []int {
	numbers := make([]int, len(all))
	for i, p := range all {
		numbers[i] = p.PID
	}
	return numbers
}

// Owns reports whether a process belongs to the command: whether it is the child, one of
// the child's descendants, or an orphan among these that is now a child of this process.
func (c *Child) Owns(pid int) bool {
	for pid > 1 && pid != os.Getpid() {
		p, ok := machine.LookAtProcess(pid)
		if !ok || c.tree.foreign[pid] {
			return false
		}
		if p.Parent == os.Getpid() {
			return true
		}
		pid = p.Parent
	}
	return false
}
