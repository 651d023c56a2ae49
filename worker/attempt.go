package worker

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"headroom/harness"
	"headroom/memory"
)

// Mode determines what a worker does about out-of-memory failures.
type Mode string

// The modes.
const (
	Armed   Mode = "armed"   // it recovers from out-of-memory failures in place
	Observe Mode = "observe" // it only reports them
	Find    Mode = "find"    // like Armed, but after the first step it makes trials of the step
	Check   Mode = "check"   // like Armed, but it checks the first step instead of carrying it out
)

// Options are the options of an attempt. Journal is required; an Attempt uses only what records
// failures, steps and how many rows fit.
type Options struct {
	Mode    Mode
	Journal harness.Journal
	Version string // the version that the package reports; "" for its own
	Micro   int    // rows that a process runs at once at most; 0 is as many as fit
	Found   bool   // Micro was found: a step can be made in such pieces, and not as a whole
	// Spill is how much of the host's memory a process may use for what does not fit on its
	// GPU; 0 is none, and nil leaves it to the process.
	Spill *memory.Bytes
	// Joined completes what holds memory that grows with what is read in the script. It may take
	// seconds, and may be called by several goroutines. It may be nil.
	Joined func(memory.Holder) memory.Holder

	// Look returns what the driver reports of the device with a uuid, on which the allocator of the
	// process pid has reserved so much; nil if the driver reports nothing. Look itself may be nil.
	// Several goroutines may call it at once.
	Look func(uuid string, pid int, reserved memory.Bytes) *memory.Seen

	// Snapshot is the absolute path of the file into which PyTorch's snapshot of a GPU's memory is
	// written when memory first runs out, unless the file exists; "" for none.
	Snapshot string

	// Trackers are those whose runs are looked for in the command's processes: wandb and mlflow.
	Trackers []string

	temp string // folder for temporary files; "" is the system's
}

// Attempt looks after one attempt of a command, from inside its processes.
type Attempt struct {
	o        Options
	limit    int // most rows to run at once, as earlier attempts settled on; 0 if none did
	folder   *folder
	listener *net.UnixListener
	ctx      context.Context
	cancel   context.CancelFunc
	all      sync.WaitGroup // goroutines for connections, accept, sweep, and scripts that are read

	mu      sync.Mutex // guards what follows
	ended   Ended
	notes   int             // entries that were written to the journal
	talks   map[*talk]bool  // open connections
	reached int             // connections so far
	checked chan struct{}   // closed when a first step has been checked, or cannot be checked
	trials  chan *Trials    // of the processes that can make them
	told    map[string]bool // keys of once-only entries that have been written
	failed  time.Time       // when the process of ended.OOM reported that failure
	// limits holds for each training how many rows each of its ranks can run at once, 0 for all of them. All ranks
	// whose launcher does not name what they train are in one.
	limits map[string]map[int]int
}

// Ended holds what an attempt has observed by its end.
type Ended struct {
	Attached bool   // a process said hello
	Python   bool   // a Python process found the package
	Torch    bool   // a process imported torch
	Failed   string // why the worker could not start in a process, else ""
	Watches  string // why the worker only watches a process, else ""
	Survived int    // out-of-memory failures that were recovered from in place

	Checked   []Checked // what was found in a first step, in mode Check
	Unchecked string    // why a first step cannot be checked or tried, else ""

	// OOM is the newest out-of-memory failure after which the process completed no further step, or
	// nil if there is none. Of ranks that train together, it is the first one's. Where is the line of the user's code at which it happened.
	OOM   *memory.OutOfMemoryError
	Where string
	Why   string // why the failure was left to the command's own code, or "" if it was not
	Hint  string // what the user can do about it, or ""
	// Mixed says how a step's result was seen to depend on which rows are in a batch together, so
	// that smaller micro-batches would train something else. It is "" if no step was seen to.
	Mixed string
	// Boundary holds the amounts of memory that the process in which OOM happened had allocated
	// after some of its steps, oldest first. Every is the number of steps between two consecutive
	// elements.
	Boundary []memory.Bytes
	Every    int
	// Holder is what holds memory that grows: in the process in which OOM happened, or, if that is
	// nil, in any process, as of that process's newest step. It is nil if nothing is known to grow.
	Holder *memory.Holder
	// Tracked has the ids of the runs that the processes had open in each tracker, "" for one that
	// another process cannot continue.
	Tracked map[string][]string
	// Training lists the processes that had taken optimizer steps and went on running at the
	// end of the attempt.
	Training []int
}

// socketMost is the longest path that a Unix socket may have, in bytes.
const socketMost = 107

// Begin unpacks the package and opens the socket. In the background it removes folders
// that killed processes of this user left behind. The caller must end the attempt.
func Begin(o Options) (*Attempt, error) {
	f, err := makeFolder(o.temp, o.Version)
	if err != nil {
		return nil, fmt.Errorf("unpack the worker: %w", err)
	}
	a := &Attempt{o: o, limit: o.Journal.Pieces(), folder: f, talks: map[*talk]bool{}, told: map[string]bool{}, limits: map[string]map[int]int{}, checked: make(chan struct{}), trials: make(chan *Trials, ranksMost)}
	a.listener, err = net.ListenUnix("unix", &net.UnixAddr{Name: a.Socket(), Net: "unix"})
	if err == nil {
		if err = os.Chmod(a.Socket(), 0o600); err != nil {
			err = errors.Join(err, a.listener.Close())
		}
	}
	if err != nil {
		return nil, fmt.Errorf("open the worker's socket: %w", errors.Join(err, f.remove()))
	}
	a.ctx, a.cancel = context.WithCancel(context.Background())
	a.all.Go(a.accept)
	a.all.Go(func() { sweep(filepath.Dir(f.dir), time.Now().Add(-abandoned)) })
	return a, nil
}

// Checked returns a channel that is closed when a process has checked its first step, or
// has said why it cannot.
func (a *Attempt) Checked() <-chan struct{} { return a.checked }

// ranksMost is the largest number of processes whose trials are kept.
const ranksMost = 64

// Trials returns a channel on which the processes arrive that can make trials of their step, in mode Find. If it
// cannot, the channel that [Attempt.Checked] returns is closed instead.
func (a *Attempt) Trials() <-chan *Trials { return a.trials }

// RunsOut returns when a process will run out of memory if the memory that it holds keeps
// growing, and why. If several processes will, it returns the earliest time. The time is
// zero if none is expected to run out of memory.
func (a *Attempt) RunsOut() (at time.Time, why string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for t := range a.talks {
		if !t.out.IsZero() && (at.IsZero() || t.out.Before(at)) {
			at, why = t.out, t.grown
		}
	}
	return at, why
}

// check keeps what a process found in its first step, or why it cannot check that step.
// Only the first report counts.
func (a *Attempt) check(found []Checked, why string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	select {
	case <-a.checked:
	default:
		a.ended.Checked, a.ended.Unchecked = found, why
		close(a.checked)
	}
}

// trackedMost is the largest number of a tracker's runs that are kept.
const trackedMost = 8

// tracks keeps the id of a run that a process has open in a tracker.
func (a *Attempt) tracks(tracker, run string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	all := a.ended.Tracked[tracker]
	if !slices.Contains(a.o.Trackers, tracker) || slices.Contains(all, run) || len(all) >= trackedMost {
		return
	}
	if all == nil && a.ended.Tracked == nil {
		a.ended.Tracked = map[string][]string{}
	}
	a.ended.Tracked[tracker] = append(all, run)
}

// Socket returns the path of the socket; see [Ask].
func (a *Attempt) Socket() string { return filepath.Join(a.folder.dir, "wire") }

// caller returns the address from which lastCall connects.
func (a *Attempt) caller() string { return filepath.Join(a.folder.dir, "end") }

// Env returns env with additional variables, by which Python finds the package and the
// socket. The user's own PYTHONPATH is kept and comes after the package's folder.
func (a *Attempt) Env(env []string) []string {
	path := a.folder.inject()
	for _, entry := range env {
		if users, ok := strings.CutPrefix(entry, "PYTHONPATH="); ok && users != "" {
			path = a.folder.inject() + string(os.PathListSeparator) + users
		}
	}
	env = append(env[:len(env):len(env)], "PYTHONPATH="+path, "HEADROOM_SOCKET="+a.Socket(), "HEADROOM_WORKER="+string(a.o.Mode))
	if a.o.Snapshot != "" {
		env = append(env, "HEADROOM_SNAPSHOT="+a.o.Snapshot)
	}
	if len(a.o.Trackers) > 0 {
		env = append(env, "HEADROOM_TRACKERS="+strings.Join(a.o.Trackers, ","))
	}
	switch {
	case a.o.Spill == nil:
	case *a.o.Spill == 0:
		env = append(env, "HEADROOM_SPILL=off")
	default:
		env = append(env, "HEADROOM_SPILL="+strconv.FormatInt(int64(*a.o.Spill), 10))
	}
	return env
}

// farewell is the time that End may take to read the rest of a connection whose process is gone.
const farewell = 2 * time.Second

// going is farewell for a process that goes on running: what it sent until the command ended is
// there already.
const going = 100 * time.Millisecond

// End ends the attempt. It must be called once the command has ended. It reads all messages that
// processes have sent, removes the folder, and returns what the attempt has observed. A process
// that the command has left running goes on without the worker.
func (a *Attempt) End() (Ended, error) {
	a.lastCall()
	err := a.listener.Close()
	a.mu.Lock()
	for t := range a.talks {
		patience := farewell
		if unix.Kill(t.pid, 0) == nil {
			patience = going
		}
		_ = t.conn.SetReadDeadline(time.Now().Add(patience)) // otherwise the read waits for the process
	}
	a.mu.Unlock()
	a.cancel()
	a.all.Wait()
	a.ended.Python, a.ended.Torch, a.ended.Failed = a.left("python"), a.left("torch"), a.leftText("failed")
	a.ended.Watches = a.leftText("watches")
	return a.ended, errors.Join(err, a.folder.remove())
}

// lastCall connects to the attempt's own socket and waits until accept has reached this
// connection. Every process that connected earlier is accepted first, even if it is
// already gone.
func (a *Attempt) lastCall() {
	c, err := net.DialUnix("unix", &net.UnixAddr{Name: a.caller(), Net: "unix"}, &net.UnixAddr{Name: a.Socket(), Net: "unix"})
	if err != nil {
		return // the socket has been removed
	}
	defer func() { _ = c.Close() }() // nothing was written
	_ = c.SetReadDeadline(time.Now().Add(farewell))
	_, _ = c.Read(make([]byte, 1)) // returns when accept closes this connection
}

// accept accepts connections from processes of this user until lastCall
// connects.
func (a *Attempt) accept() {
	for {
		c, err := a.listener.AcceptUnix()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			select { // no file descriptors are left, perhaps only for a moment
			case <-a.ctx.Done():
				return
			case <-time.After(100 * time.Millisecond):
			}
			continue
		}
		pid, uid, err := peer(c)
		switch {
		case c.RemoteAddr().String() == a.caller():
			_ = c.Close()
			return
		case err != nil || !admitted(uid, os.Getuid()):
			_ = c.Close() // a process of another user
			continue
		}
		t := &talk{attempt: a, conn: c, pid: pid, cuts: map[int]int{}}
		a.mu.Lock()
		a.talks[t] = true
		a.reached++
		a.mu.Unlock()
		a.all.Go(t.listen)
	}
}

// admitted reports whether a process of user uid may talk to a headroom of user own.
// Only processes of the same user may. Even root's processes may not, unless headroom
// is run by root too.
func admitted(uid, own int) bool { return uid == own }

// left reports whether a process left a file called name beside the socket.
func (a *Attempt) left(name string) bool {
	_, err := os.Lstat(filepath.Join(a.folder.dir, name))
	return err == nil
}

// leftText returns the first textMost bytes of the file called name beside the socket, or
// "" if there is none.
func (a *Attempt) leftText(name string) string {
	text, err := os.ReadFile(filepath.Join(a.folder.dir, name))
	if err != nil {
		return ""
	}
	return string(text[:min(len(text), textMost)])
}
