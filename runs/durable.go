package runs

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
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

// setJSON replaces the named file of the folder with v, whole or not at all. kept is where the folder keeps
// the content, in case somebody removes the file.
func (f *Folder) setJSON(name string, v any, kept *[]byte) error {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	*kept = append(text, '\n')
	return f.kept(func() error { return writeFile(f.disk, f.path(name), *kept, false) })
}

// readJSON reads what [Folder.setJSON] has written. It returns nil without an error if there is no such file.
func readJSON[T any](path string) (*T, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	v := new(T)
	if err == nil {
		err = json.Unmarshal(text, v)
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", filepath.Base(path), err)
	}
	return v, nil
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
	return f.kept(func() error {
		if durable {
			if err := f.settle(); err != nil {
				return errors.Join(err, f.journal.flush(false))
			}
		}
		return f.journal.flush(durable)
	})
}
