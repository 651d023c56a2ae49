package runs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
)

// mostTries is how often something is done in a folder that is being removed meanwhile: between any
// two tries, its files, the folder itself or the one above it may go.
const mostTries = 4

// kept does something in the folder. If somebody has removed the folder or part of it, kept makes it
// again, with the files that nothing else would write again: the run goes on, and may still have to
// record much. If another process has made a folder of this name since, kept does nothing and
// returns a *[LockedError]. The caller holds f.mu.
func (f *Folder) kept(do func() error) (err error) {
	for range mostTries {
		if err = f.mend(); err == nil {
			err = do()
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if made := f.inner(); made != nil && !errors.Is(made, fs.ErrNotExist) {
			return err
		}
	}
	return err
}

// mend makes again what somebody has removed. The lock file tells whether that has begun. From then
// on each file is looked for: the rest of the folder may be removed later, and with it what was made
// again too early.
func (f *Folder) mend() error {
	if !still(f.path("lock"), f.lock) {
		return f.again()
	}
	if f.remade {
		return f.restore()
	}
	return nil
}

// again makes what is missing of a folder without its lock file. The error is a *[LockedError] if
// another process has the folder by now.
func (f *Folder) again() error {
	if err := os.MkdirAll(filepath.Clean(f.dir), 0o755); err != nil {
		return err
	}
	_, gone := os.Stat(f.path("logs"))
	err := f.lockAgain() // the process that makes the lock file has the folder
	switch {
	case errors.Is(err, fs.ErrExist):
		return holder(f.dir)
	case err != nil:
		return fmt.Errorf("take the lock of %s again after its file was removed: %w", f.dir, err)
	}
	f.remade = true
	if gone == nil { // only the lock file was removed, or a few files
		f.removals = append(f.removals, "lock was removed while the run held it: the file was created and locked again")
		return f.restore()
	}
	f.removals = append(f.removals, "the run's folder was removed while the run was using it, and was made again: what it held until then is missing from reports")
	f.unsynced = slices.DeleteFunc(f.unsynced, func(path string) bool { return path != f.dir })
	if !slices.Contains(f.unsynced, f.dir) {
		f.unsynced = append(f.unsynced, f.dir)
	}
	err = errors.Join(f.inner(), f.restore())
	for _, l := range []*lines{f.journal, f.metrics} {
		err = errors.Join(err, l.follow())
		l.removed = false // the sentence about the folder says so
	}
	return err
}

// restore writes the files that are missing and that nothing else would write again.
func (f *Folder) restore() error {
	missing := func(name string) bool {
		_, err := os.Lstat(f.path(name))
		return errors.Is(err, fs.ErrNotExist)
	}
	var err error
	for name, text := range map[string][]byte{"run.yaml": f.config, "learned.json": f.learned, "known.json": f.known} {
		if text != nil && missing(name) {
			err = errors.Join(err, writeFile(f.disk, f.path(name), text, false))
		}
	}
	if f.secrets != nil && missing(secretsFile) {
		err = errors.Join(err, f.writeSecrets())
	}
	return err
}

// inner makes the inner folders.
func (f *Folder) inner() error {
	return errors.Join(f.disk.Mkdir(f.path("checkpoints")), f.disk.Mkdir(f.path("logs")))
}
