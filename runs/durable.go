package runs

import (
	"errors"
	"io/fs"
	"slices"
)

// SetConfig replaces run.yaml, whole or not at all.
func (f *Folder) SetConfig(text []byte) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.config = text
	return f.kept(func() error { return f.replace("run.yaml", text) })
}

// replace replaces the named file of the folder with text, whole or not at all. It
// returns once that file and everything in f.unsynced are safely on disk.
func (f *Folder) replace(name string, text []byte) error {
	err := writeFile(f.disk, f.path(name), text, true)
	if err == nil && !slices.Contains(f.unsynced, f.dir) {
		f.unsynced = append(f.unsynced, f.dir)
	}
	return errors.Join(err, f.settle())
}

// FirstConfig writes the run.yaml of a folder that has none. It does not wait for the
// file to reach the disk: the next write that must survive a power loss, of an entry,
// checkpoint or status, waits for run.yaml as well.
func (f *Folder) FirstConfig(text []byte) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.config = text
	path := f.path("run.yaml")
	err := writeFile(f.disk, path, text, false)
	if err == nil {
		f.unsynced = append([]string{path}, f.unsynced...)
	}
	return err
}

// settle waits until everything in f.unsynced is safely on disk. After an error, the next
// call retries whatever is not on disk yet.
func (f *Folder) settle() error {
	for len(f.unsynced) > 0 {
		if err := f.disk.SyncDir(f.unsynced[0]); err != nil && !errors.Is(err, fs.ErrNotExist) { // a file that somebody removed need not be synced
			return err
		}
		f.unsynced = f.unsynced[1:]
	}
	return nil
}

// writeJournal writes the entries that are waiting in memory. If durable is true, it also
// waits for the disk.
func (f *Folder) writeJournal(durable bool) error {
	return f.kept(func() error { return f.journalOnce(durable) })
}

func (f *Folder) journalOnce(durable bool) error {
	if durable {
		if err := f.settle(); err != nil {
			return errors.Join(err, f.journal.flush(false))
		}
	}
	return f.journal.flush(durable)
}
