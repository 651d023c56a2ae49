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

// A folder named here would lose the files that begin with _.
//
//go:embed python/_headroom_hook.py python/inject/sitecustomize.py python/headroom/*.py
var files embed.FS

// folderName is how the private folders of a user begin, in the folder for temporary files.
var folderName = "headroom-worker-" + strconv.Itoa(os.Getuid()) + "-"

// folder is a private one, with the package and the socket. Its lock is held as long as
// this process lives, so that the folder of one that was killed can be told.
type folder struct {
	dir  string
	lock *os.File
}

// abandoned is how old a folder without an owner must be: one is not locked yet in the
// moment after it was made.
const abandoned = time.Minute

// makeFolder makes one in temp and unpacks the package there, which calls itself
// version. Folders that killed processes of this user left are removed first.
func makeFolder(temp, version string) (*folder, error) {
	sweep(temp, time.Now().Add(-abandoned))
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

// inject is what PYTHONPATH is to begin with.
func (f *folder) inject() string { return filepath.Join(f.dir, "package") }

// remove removes the folder with all that is in it.
func (f *folder) remove() error {
	err := os.RemoveAll(f.dir)
	if f.lock != nil {
		err = errors.Join(err, f.lock.Close())
	}
	return err
}

// sweep removes the folders of this user in temp whose process is gone, and that were
// locked before a time.
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
			_ = os.RemoveAll(dir) // the next one tries again
		}
		_ = lock.Close() // nothing was written
	}
}

// unpack writes the package and what injects it into dir.
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
