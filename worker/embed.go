package worker

import (
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// The patterns name files, because embedding a whole folder would leave out the
// files whose names begin with _.
//
//go:embed python/_headroom_hook.py python/inject/sitecustomize.py python/headroom_train/*.py python/headroom_train/*/*.py
var files embed.FS

// folderName is the prefix of the names of a user's private folders, which lie in the
// folder for temporary files.
var folderName = "headroom-worker-" + strconv.Itoa(os.Getuid()) + "-"

// folder is a private folder that holds the package and the socket. Its lock is held
// until the folder is removed or this process ends, so that the folder of a killed
// process can be recognised.
type folder struct {
	dir  string
	lock *os.File
}

// abandoned is the age from which an unlocked folder counts as abandoned. A younger folder
// may have been made just now and not be locked yet.
const abandoned = time.Minute

// tempFor returns the folder for temporary files: temp, or the system's if temp is
// empty. If the path of a socket in that folder would be too long, it returns /tmp.
func tempFor(temp string) (string, error) {
	if temp == "" {
		temp = os.TempDir()
	}
	if len(filepath.Join(temp, folderName+"4294967295", "wire")) > socketMost {
		temp = "/tmp"
	}
	return filepath.Abs(temp) // the command may run elsewhere
}

// makeFolder makes a folder in temp and unpacks the Python package there. The
// package then reports the given version as its own.
func makeFolder(temp, version string) (*folder, error) {
	temp, err := tempFor(temp)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(temp, folderName)
	if err != nil {
		return nil, err
	}
	f := &folder{dir: dir}
	if f.lock, err = os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600); err == nil {
		err = unix.Flock(int(f.lock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	}
	if err == nil {
		err = unpack(f.inject(), version)
	}
	if err != nil {
		return nil, errors.Join(err, f.remove())
	}
	return f, nil
}

// inject returns the path that PYTHONPATH must begin with.
func (f *folder) inject() string { return filepath.Join(f.dir, "package") }

// remove removes the folder with everything in it.
func (f *folder) remove() error {
	err := os.RemoveAll(f.dir)
	if f.lock != nil {
		err = errors.Join(err, f.lock.Close())
	}
	return err
}

// Standby is the folder of an attempt that is about to begin. It is unpacked while the
// caller does other things, because unpacking takes about as long as everything else
// that happens before a command runs.
type Standby struct {
	made   chan struct{}
	folder *folder // nil once an attempt has taken it
	err    error
}

// StandBy returns a [Standby] and makes its folder in the background. The package in the
// folder reports version as its own. The caller must call Discard.
func StandBy(version string) *Standby {
	s := &Standby{made: make(chan struct{})}
	go func() {
		defer close(s.made)
		s.folder, s.err = makeFolder("", version)
	}()
	return s
}

// take waits until the folder is made, and returns it the first time. Later
// calls, and calls on nil, return nil.
func (s *Standby) take() (*folder, error) {
	if s == nil {
		return nil, nil
	}
	<-s.made
	f, err := s.folder, s.err
	s.folder, s.err = nil, nil
	return f, err
}

// Discard removes the folder if no attempt has taken it. It may be called on nil, but not
// while an attempt is beginning.
func (s *Standby) Discard() {
	if f, _ := s.take(); f != nil {
		_ = f.remove() // a later attempt removes leftovers
	}
}

// sweep removes this user's folders in temp whose process is gone, provided that
// their lock file is older than the given time.
func sweep(temp string, before time.Time) {
	found, _ := filepath.Glob(filepath.Join(temp, folderName+"*")) // the pattern is well formed
	for _, dir := range found {
		var stat unix.Stat_t
		if unix.Lstat(dir, &stat) != nil || stat.Mode&unix.S_IFMT != unix.S_IFDIR || int(stat.Uid) != os.Getuid() {
			continue
		}
		lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|unix.O_NOFOLLOW, 0)
		if err != nil {
			continue
		}
		info, err := lock.Stat()
		if err == nil && info.ModTime().Before(before) && unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
			_ = os.RemoveAll(dir) // the next sweep tries again
		}
		_ = lock.Close() // nothing was written
	}
}

// unpack writes the package, and the modules that Python loads to start it,
// into dir. If version is not empty, the package reports it as its own.
func unpack(dir, version string) error {
	return fs.WalkDir(files, "python", func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		to := strings.TrimPrefix(strings.TrimPrefix(name, "python"), "/")
		to = filepath.Join(dir, filepath.FromSlash(strings.TrimPrefix(to, "inject"))) // beside the package
		if entry.IsDir() {
			return os.MkdirAll(to, 0o700)
		}
		text, err := files.ReadFile(name)
		if err != nil {
			return err
		}
		if path.Base(name) == "_version.py" && version != "" {
			text = fmt.Appendf(nil, "\"\"\"The version, which is the binary's.\"\"\"\n\n__version__ = %q\n", version)
		}
		return os.WriteFile(to, text, 0o600)
	})
}
