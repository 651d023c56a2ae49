package wrap

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// tree is all that descends from a child, including the orphans among its descendants,
// which the kernel makes children of this process. A process that this one had
// started before, with all that descends from it, is not part of the tree.
type tree struct {
	child    int          // the direct child, which somebody else waits for
	foreign  map[int]bool // children that this process had before
	reaper   bool         // this process was a subreaper already
	children chan os.Signal
	quit     chan struct{} // ends reapOrphans
	quitted  chan struct{}
	trouble  func(error)
	list     func() []process
}

// newTree makes this process the subreaper, which adopts orphans.
func newTree(trouble func(error)) *tree {
	t := &tree{
		foreign: map[int]bool{}, trouble: trouble,
		children: make(chan os.Signal, 1), quit: make(chan struct{}), quitted: make(chan struct{}), list: listProcesses,
	}
	var before int32
	if err := unix.Prctl(unix.PR_GET_CHILD_SUBREAPER, uintptr(unsafe.Pointer(&before)), 0, 0, 0); err == nil {
		t.reaper = before != 0
	}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		trouble(fmt.Errorf("adopt orphans: %w", err))
	}
	if !childless() {
		for _, p := range listProcesses() {
			t.foreign[p.pid] = p.parent == os.Getpid()
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

// reapInterval limits the cost of looking for dead orphans where many die; a command that
// ends sooner pays none of it.
const reapInterval = time.Second

// reapOrphans reaps dead orphans until end is called, at most once every reapInterval.
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

// untilGivenUp is how long killed processes have to disappear. One that hangs in a driver
// never does.
const untilGivenUp = 10 * time.Second

// looksForNothing is how many process lists in a row have to be without a process of the
// tree before the tree counts as gone.
const looksForNothing = 3

// end ends what is left after the direct child: it asks, and kills after a while or
// when kill is closed. It returns when nothing is left, or only what cannot be
// killed.
func (t *tree) end(grace time.Duration, kill <-chan struct{}) {
	close(t.quit)
	<-t.quitted
	look := 5 * time.Millisecond // grandchildren do not report when they end
	again := time.NewTimer(look)
	defer again.Stop()
	patience, how, given := time.NewTimer(grace), syscall.SIGTERM, time.Time{}
	defer patience.Stop()
	nothing := 0 // how many lists in a row showed that nothing is left
	for first := true; !childless(); {
		left := t.left()
		if len(left) > 0 {
			nothing = 0
		}
		switch {
		case len(left) == 0:
			// Only children that were there before are left, or the list has a gap: while it was being
			// made, a process forked another and died, and neither is on it.
			if nothing++; nothing == looksForNothing {
				return
			}
			continue
		case how == syscall.SIGKILL && time.Since(given) > untilGivenUp:
			t.trouble(fmt.Errorf("processes that cannot be killed are left: %v", pids(left)))
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

// signal sends a signal to all of the tree.
func (t *tree) signal(s syscall.Signal) { send(t.left(), s) }

func send(to []process, s syscall.Signal) {
	for _, p := range to {
		_ = syscall.Kill(p.pid, s) // it may have ended by itself
		if s == syscall.SIGTERM {
			_ = syscall.Kill(p.pid, syscall.SIGCONT) // a process that is stopped would not hear it
		}
	}
}

// left is the tree as it is now, without processes that have ended and wait to be reaped.
// Dead orphans are reaped on the way.
func (t *tree) left() []process {
	below := map[int][]process{}
	for _, p := range t.list() {
		below[p.parent] = append(below[p.parent], p)
	}
	var all []process
	todo := below[os.Getpid()]
	for len(todo) > 0 {
		p := todo[0]
		todo = todo[1:]
		if t.foreign[p.pid] {
			continue
		}
		todo = append(todo, below[p.pid]...)
		if !p.dead {
			all = append(all, p)
		} else if p.parent == os.Getpid() && p.pid != t.child {
			_, _ = syscall.Wait4(p.pid, nil, syscall.WNOHANG, nil)
		}
	}
	return all
}

// childless reports whether this process has no children at all, dead ones included.
// It costs one system call, where looking through /proc takes milliseconds.
func childless() bool {
	for {
		err := unix.Waitid(unix.P_ALL, 0, nil, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
		if !errors.Is(err, syscall.EINTR) {
			return errors.Is(err, syscall.ECHILD)
		}
	}
}

// process is one process of the machine.
type process struct {
	pid, parent int
	dead        bool
}

func pids(all []process) []int {
	numbers := make([]int, len(all))
	for i, p := range all {
		numbers[i] = p.pid
	}
	return numbers
}

// listProcesses returns the processes that run now. They need not all have run at the same
// moment: whoever signals them looks again.
func listProcesses() []process {
	folder, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer folder.Close() //nolint:errcheck // nothing was written
	names, _ := folder.Readdirnames(-1)
	var all []process
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		if text, err := os.ReadFile("/proc/" + name + "/stat"); err == nil {
			if p, ok := parseStat(pid, text); ok {
				all = append(all, p)
			}
		}
	}
	return all
}

// parseStat reads "pid (name) state parent ...", where a name may hold anything.
func parseStat(pid int, text []byte) (process, bool) {
	words := bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:])
	if len(words) < 2 {
		return process{}, false
	}
	parent, err := strconv.Atoi(string(words[1]))
	state := words[0][0]
	return process{pid: pid, parent: parent, dead: state == 'Z' || state == 'X'}, err == nil
}

// Owns reports whether a process is the command's: the child, a descendant of it, or an
// orphan of its tree that this process has adopted.
func (c *Child) Owns(pid int) bool {
	for pid > 1 && pid != os.Getpid() {
		text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
		if err != nil {
			return false
		}
		p, ok := parseStat(pid, text)
		if !ok || c.tree.foreign[pid] {
			return false
		}
		if p.parent == os.Getpid() {
			return true
		}
		pid = p.parent
	}
	return false
}
