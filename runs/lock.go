package runs

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// lockPatience is how long to wait for a lock, in lockTries tries: a reader that checks
// whether a run is alive may hold the lock for a moment.
const (
	lockPatience = 200 * time.Millisecond
	lockTries    = 20
)

// LockedError reports that another process holds a run's folder. All fields but Dir are
// what that process wrote about itself; they are zero if it has not done so yet.
type LockedError struct {
	Dir     string    `json:"-"`
	PID     int       `json:"pid"`
	Host    string    `json:"host"`
	Started time.Time `json:"started"`
	Ended   State     `json:"ended,omitempty"` // see markEnded
}

func (e *LockedError) Error() string {
	who := "another process"
	if e.PID != 0 {
		who = fmt.Sprintf("process %d on %s since %s", e.PID, e.Host, e.Started.Format(time.DateTime))
	}
	return fmt.Sprintf("open run folder %s: in use by %s; wait for it, interrupt it, or name another folder", e.Dir, who)
}

// takeLock locks dir for this process and records in the lock file which process that
// is. The lock belongs to the open file. The kernel releases it when the file is
// closed, and therefore when the process ends, however it ends. It is kept if the
// process executes another program that keeps the file open.
func takeLock(dir string) (*os.File, error) {
	file, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	if err := lockMeant(dir, file); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

// lockMeant is takeLock for a lock file that is already open. Once it holds the lock,
// it checks that dir still has this file: somebody may have replaced the folder in the
// meantime.
func lockMeant(dir string, file *os.File) error {
	got, err := tryLock(file)
	for tries := 0; err == nil && !got && tries < lockTries; tries++ {
		time.Sleep(lockPatience / lockTries)
		got, err = tryLock(file)
	}
	if err != nil {
		return err
	}
	if !got {
		return holder(dir)
	}
	path := filepath.Join(dir, "lock")
	if !still(path, file) {
		return &LockedError{Dir: dir}
	}
	text, err := owner("")
	if err != nil {
		return err
	}
	return os.WriteFile(path, text, 0o644)
}

// owner returns what this process writes about itself into the lock file. ended is the state in
// which the run has ended, or "" (see markEnded).
func owner(ended State) ([]byte, error) {
	host, _ := os.Hostname() // a name for people; if there is none, there is still the PID
	text, err := json.Marshal(LockedError{PID: os.Getpid(), Host: host, Started: time.Now().Truncate(time.Second), Ended: ended})
	return append(text, '\n'), err
}

// tryLock tries to lock f without waiting, and reports whether it succeeded.
func tryLock(f *os.File) (bool, error) {
	err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) || errors.Is(err, unix.EINTR) {
		return false, nil
	}
	return err == nil, err
}

// still reports whether path still names the file that was opened as f. During a wait
// for a lock, the process that held it may have renamed the folder. The lock then
// belongs to the renamed folder, and whatever is at path by now belongs to another run.
// Folders are never renamed back.
func still(path string, f interface{ Stat() (os.FileInfo, error) }) bool {
	then, err := f.Stat()
	if err != nil {
		return false
	}
	now, err := os.Stat(path)
	return err == nil && os.SameFile(then, now)
}

// StillHeld returns nil while the folder belongs to this process. If somebody has
// removed the lock file, or the whole folder, StillHeld creates it again and locks it. If another process was
// faster, the folder belongs to that process, and the error is a *[LockedError].
func (f *Folder) StillHeld() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.kept(func() error { return nil })
}

// lockAgain creates the lock file again and locks it.
func (f *Folder) lockAgain() error {
	made, err := os.OpenFile(f.path("lock"), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	if err := lockMeant(f.dir, made); err != nil {
		return errors.Join(err, made.Close())
	}
	old := f.lock
	f.lock = made
	return old.Close()
}

// markEnded records in the lock file, for readers of the status, that the run has ended in a state.
// It is for a disk so full that status.json cannot be replaced: the lock file is a few bytes in a
// block that it already has, so it can still be written in place.
func (f *Folder) markEnded(s State) error {
	text, err := owner(s)
	if err != nil {
		return err
	}
	if info, err := f.lock.Stat(); err == nil && info.Size() > int64(len(text)) {
		text = append(text, bytes.Repeat([]byte(" "), int(info.Size())-len(text))...)
	}
	if _, err := f.lock.WriteAt(text, 0); err != nil {
		return fmt.Errorf("write lock: %w", err)
	}
	return f.lock.Sync()
}

func holder(dir string) *LockedError {
	l := &LockedError{}
	if text, err := os.ReadFile(filepath.Join(dir, "lock")); err == nil {
		_ = json.Unmarshal(text, l) // if the file is half written, the holder is reported without a name
	}
	l.Dir = dir
	return l
}

// alive reports whether a process holds dir. It also returns true if that cannot be
// found out.
func alive(dir string) bool {
	file, err := os.Open(filepath.Join(dir, "lock"))
	if err != nil {
		return !errors.Is(err, os.ErrNotExist)
	}
	err = unix.Flock(int(file.Fd()), unix.LOCK_SH|unix.LOCK_NB)
	return errors.Join(err, file.Close()) != nil
}
