package worker

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"headroom/memory"
	"headroom/runs"
)

// Mode is how much a worker may do.
type Mode string

// The modes.
const (
	Armed   Mode = "armed"   // it recovers from failures of memory in place
	Observe Mode = "observe" // it only reports them
	Check   Mode = "check"   // it recovers, and looks at the first step, which is not made
)

// Books is where a life is written down: a [harness.Session], with a lock if others
// write in it between [Begin] and [Life.End].
type Books interface {
	Note(runs.Entry)
	Survived(runs.Entry)
	Stepped(runs.ProcessStep)
	Pieces() int
	KeepPieces(rows int)
}

// Options of a life. Books is needed.
type Options struct {
	Mode    Mode
	Books   Books
	Version string   // for the package to have; "" leaves it its own
	Standby *Standby // for the first life of several; nil to make the folder now

	temp string // folder for temporary files; "" is the system's
}

// Life looks after one life of a command.
type Life struct {
	o        Options
	limit    int // rows at once that the lives before this one settled on; 0 if none did
	folder   *folder
	listener *net.UnixListener
	ctx      context.Context
	cancel   context.CancelFunc
	all      sync.WaitGroup // connections, and who waits for them

	mu      sync.Mutex // guards the books and what follows
	ended   Ended
	notes   int             // that were written down
	talks   map[*talk]bool  // connections that are open
	reached int             // connections there have been
	checked chan struct{}   // closed when a first step has been looked at, or cannot be
	told    map[string]bool // what is told only once, and has been
}

// Ended is what was seen of a life.
type Ended struct {
	Attached bool   // a process said hello
	Python   bool   // a Python found the package
	Torch    bool   // one imported torch
	Failed   string // why the worker could not start in one; ""
	Survived int    // failures of memory that were recovered from in place

	Checked   []Checked // of a first step, in the mode for that
	Unchecked string    // why a first step cannot be looked at; ""

	// OOM is the newest failure of memory after which its process made no further step,
	// nil if there is none. Where says which line of the user's it was in.
	OOM   *memory.OutOfMemoryError
	Where string
	// Boundary is what that process had allocated after some of its steps, oldest first,
	// and Every how many steps lie between one and the next.
	Boundary []memory.Bytes
	Every    int
}

// socketMost is the longest path that a Unix socket may have, in bytes.
const socketMost = 107

// Begin unpacks the package and opens the socket. Meanwhile it removes folders that
// killed processes of this user left behind. The life must be ended.
func Begin(o Options) (*Life, error) {
	f, err := o.Standby.take()
	if f == nil && err == nil {
		f, err = makeFolder(o.temp, o.Version)
	}
	if err != nil {
		return nil, fmt.Errorf("unpack the worker: %w", err)
	}
	l := &Life{o: o, limit: o.Books.Pieces(), folder: f, talks: map[*talk]bool{}, told: map[string]bool{}, checked: make(chan struct{})}
	l.listener, err = net.ListenUnix("unix", &net.UnixAddr{Name: l.socket(), Net: "unix"})
	if err == nil {
		err = os.Chmod(l.socket(), 0o600)
	}
	if err != nil {
		return nil, fmt.Errorf("open the worker's socket: %w", errors.Join(err, l.close(), f.remove()))
	}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	l.all.Go(l.accept)
	l.all.Go(func() { sweep(filepath.Dir(f.dir), time.Now().Add(-abandoned)) })
	return l, nil
}

// Checked is closed when a process has looked at its first step, or has said why it cannot.
func (l *Life) Checked() <-chan struct{} { return l.checked }

// RunsOut is when the memory of a process will have run out if what it holds keeps
// growing, and what grows; of several processes, the first to run out. It is zero while
// nothing suggests that.
func (l *Life) RunsOut() (at time.Time, why string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for t := range l.talks {
		if !t.out.IsZero() && (at.IsZero() || t.out.Before(at)) {
			at, why = t.out, t.grown
		}
	}
	return at, why
}

// check takes what a process found in its first step, or why it cannot look at it. The
// first one counts.
func (l *Life) check(found []Checked, why string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-l.checked:
	default:
		l.ended.Checked, l.ended.Unchecked = found, why
		close(l.checked)
	}
}

func (l *Life) socket() string { return filepath.Join(l.folder.dir, "wire") }

// caller is the address from which lastCall calls.
func (l *Life) caller() string { return filepath.Join(l.folder.dir, "end") }

func (l *Life) close() error {
	if l.listener == nil {
		return nil
	}
	return l.listener.Close()
}

// Env is env with what a Python needs to find the package and the socket. The user's
// own PYTHONPATH keeps its order behind ours.
func (l *Life) Env(env []string) []string {
	path := l.folder.inject()
	for _, entry := range env {
		if users, ok := strings.CutPrefix(entry, "PYTHONPATH="); ok && users != "" {
			path = l.folder.inject() + string(os.PathListSeparator) + users
		}
	}
	return append(env[:len(env):len(env)], "PYTHONPATH="+path, "HEADROOM_SOCKET="+l.socket(), "HEADROOM_WORKER="+string(l.o.Mode))
}

// farewell is how long reading a connection to its end may take once its process is gone.
const farewell = 2 * time.Second

// End ends it when nothing of the command is left: what was said is read to the end,
// and the folder is removed.
func (l *Life) End() (Ended, error) {
	l.lastCall()
	err := l.close()
	l.mu.Lock()
	for t := range l.talks {
		_ = t.conn.SetReadDeadline(time.Now().Add(farewell)) // else it waits for its process
	}
	l.mu.Unlock()
	l.cancel()
	l.all.Wait()
	l.ended.Python, l.ended.Torch, l.ended.Failed = l.left("python"), l.left("torch"), l.leftText("failed")
	return l.ended, errors.Join(ignoreClosed(err), l.folder.remove())
}

// lastCall connects to the life's own socket: whatever connected earlier is let in
// first, even if it is gone already.
func (l *Life) lastCall() {
	c, err := net.DialUnix("unix", &net.UnixAddr{Name: l.caller(), Net: "unix"}, &net.UnixAddr{Name: l.socket(), Net: "unix"})
	if err != nil {
		return // somebody has removed the socket
	}
	defer func() { _ = c.Close() }() // nothing was written
	_ = c.SetReadDeadline(time.Now().Add(farewell))
	_, _ = c.Read(make([]byte, 1)) // ends when accept has got to it
}

// accept lets processes of this user in until End calls.
func (l *Life) accept() {
	for {
		c, err := l.listener.AcceptUnix()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			select { // no descriptors are left, perhaps for a moment
			case <-l.ctx.Done():
				return
			case <-time.After(100 * time.Millisecond):
			}
			continue
		}
		pid, uid, err := peer(c)
		switch {
		case c.RemoteAddr().String() == l.caller():
			_ = c.Close()
			return
		case err != nil || !admitted(uid, os.Getuid()):
			_ = c.Close() // it has no business here
			continue
		}
		t := &talk{life: l, conn: c, pid: pid, cuts: map[int]int{}}
		l.mu.Lock()
		l.talks[t] = true
		l.reached++
		l.mu.Unlock()
		l.all.Go(t.listen)
	}
}

// admitted reports whether a process of user uid may talk to a headroom of own: only
// its own user's may, so not even root's.
func admitted(uid, own int) bool { return uid == own }

// left reports whether a process left a file of that name beside the socket.
func (l *Life) left(name string) bool {
	_, err := os.Lstat(filepath.Join(l.folder.dir, name))
	return err == nil
}

// leftText is what is in it.
func (l *Life) leftText(name string) string {
	text, err := os.ReadFile(filepath.Join(l.folder.dir, name))
	if err != nil {
		return ""
	}
	return string(text[:min(len(text), textMost)])
}

func ignoreClosed(err error) error {
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}
