package harness

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/gofrs/flock"
)

// lockPatience is how long a lock may be held by a reader that looks whether a
// run is alive.
const lockPatience = 200 * time.Millisecond

// Locked is a run's folder that another process holds. The fields are what that
// process wrote about itself; they are zero if it has not yet.
type Locked struct {
	Dir     string    `json:"-"`
	PID     int       `json:"pid"`
	Host    string    `json:"host"`
	Started time.Time `json:"started"`
}

func (e *Locked) Error() string {
	who := "another process"
	if e.PID != 0 {
		who = fmt.Sprintf("process %d on %s since %s", e.PID, e.Host, e.Started.Format(time.DateTime))
	}
	return fmt.Sprintf("open run folder %s: in use by %s; wait for it, interrupt it, or name another folder", e.Dir, who)
}

// takeLock locks dir for this process and writes down who that is. The kernel
// lets go of the lock when the process ends, however it ends.
func takeLock(dir string) (*flock.Flock, error) {
	meant, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	defer func() { _ = meant.Close() }() // nothing was written
	return lockMeant(dir, meant)
}

// lockMeant is takeLock once the file to lock is open. That file shows whether
// the folder is still the same when the lock is got.
func lockMeant(dir string, meant *os.File) (*flock.Flock, error) {
	path := filepath.Join(dir, "lock")
	lock := flock.New(path, flock.SetPermissions(0o644))
	ctx, cancel := context.WithTimeout(context.Background(), lockPatience)
	defer cancel()
	got, err := lock.TryLockContext(ctx, lockPatience/20)
	if err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return nil, err
	}
	if !got {
		who := holder(dir)
		return nil, errors.Join(who, lock.Close())
	}
	if !still(path, meant) {
		return nil, errors.Join(&Locked{Dir: dir}, lock.Unlock())
	}
	host, _ := os.Hostname() // a name for people; an empty one still tells the process
	text, err := json.Marshal(Locked{PID: os.Getpid(), Host: host, Started: time.Now().Truncate(time.Second)})
	if err == nil {
		err = os.WriteFile(path, append(text, '\n'), 0o644)
	}
	if err != nil {
		return nil, errors.Join(err, lock.Unlock())
	}
	return lock, nil
}

// still tells whether path is the file that it was when f was opened. While a
// lock was waited for, the process that held it may have renamed the folder: the
// lock is then that of the folder set aside, and whatever is at path by now
// belongs to somebody else. Folders are never renamed back.
func still(path string, f *os.File) bool {
	then, err := f.Stat()
	if err != nil {
		return false
	}
	now, err := os.Stat(path)
	return err == nil && os.SameFile(then, now)
}

func holder(dir string) *Locked {
	l := &Locked{}
	if text, err := os.ReadFile(filepath.Join(dir, "lock")); err == nil {
		_ = json.Unmarshal(text, l) // half written: told without a name
	}
	l.Dir = dir
	return l
}

// alive tells whether a process holds dir. If that cannot be found out it says
// yes.
func alive(dir string) bool {
	path := filepath.Join(dir, "lock")
	if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
		return false
	}
	lock := flock.New(path)
	free, err := lock.TryRLock()
	if free {
		err = lock.Unlock()
	}
	return !free || err != nil
}
