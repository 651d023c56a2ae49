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

// Embedding a whole folder by its name would leave out the files that begin with _.
//
//go:embed python/_headroom_hook.py python/inject/sitecustomize.py python/headroom/*.py
var files embed.FS

// folderName is the prefix of the names of a user's private folders, which lie in the
// folder for temporary files.
var folderName = "headroom-worker-" + strconv.Itoa(os.Getuid()) + "-"

// folder is a private folder, with the package and the socket. Its lock is held as long
// as this process lives, so that the folder of a killed process can be recognised.
type folder struct {
	dir  string
	lock *os.File
}

// abandoned is how old an unlocked folder must be before it counts as abandoned: for a
// moment after it is made, a folder is not yet locked.
const abandoned = time.Minute

// tempFor is the folder for temporary files: temp, or the system's if temp is empty, or
// /tmp where the path of a socket in that folder would be too long.
func tempFor(temp string) (string, error) {
	if temp == "" {
		temp = os.TempDir()
	}
	if len(filepath.Join(temp, folderName+"4294967295", "wire")) > socketMost {
		temp = "/tmp"
	}
	return filepath.Abs(temp) // the command may run elsewhere
}

// makeFolder makes a folder in temp and unpacks the Python package there, which then
// reports version as its own.
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

// inject is the path that PYTHONPATH must begin with.
func (f *folder) inject() string { return filepath.Join(f.dir, "package") }

// remove removes the folder with everything in it.
func (f *folder) remove() error {
	err := os.RemoveAll(f.dir)
	if f.lock != nil {
		err = errors.Join(err, f.lock.Close())
	}
	return err
}

// Standby is the folder of a life that is about to begin, unpacked while its caller does
// other things: unpacking takes about as long as everything else before a command runs.
type Standby struct {
	made   chan struct{}
	folder *folder // nil once a life has taken it
	err    error
}

// StandBy begins to make a [Standby], with a package that reports version as its own.
// The caller must discard it.
func StandBy(version string) *Standby {
	s := &Standby{made: make(chan struct{})}
	go func() {
		defer close(s.made)
		s.folder, s.err = makeFolder("", version)
	}()
	return s
}

// take returns the folder to the first life that asks for it; later ones get nil.
func (s *Standby) take() (*folder, error) {
	if s == nil {
		return nil, nil
	}
	<-s.made
	f, err := s.folder, s.err
	s.folder, s.err = nil, nil
	return f, err
}

// Discard removes the folder if no life has taken it. It may be called on nil, but not
// while a life is beginning.
func (s *Standby) Discard() {
	if f, _ := s.take(); f != nil {
		_ = f.remove() // the next life sweeps away what is left
	}
}

// sweep removes this user's folders in temp that were locked before a given time and
// whose process is gone.
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

// unpack writes the package, and the modules that inject it, into dir.
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
