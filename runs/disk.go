package runs

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// Disk is the set of operations with which a run changes its folder, except for the
// lock and the logs. Tests pass their own Disk to [OpenOn] and make each operation fail
// in turn.
type Disk interface {
	Mkdir(path string) error             // no error if it exists already
	Create(path string) (File, error)    // opens an empty file; its old content is lost
	Append(path string) (File, error)    // opens a file to write at its end; creates it if it is missing
	Truncate(path string, n int64) error // to n bytes
	Rename(from, to string) error        // the new name must be free, or that of a file
	Remove(path string) error            // a file, or a folder with everything in it
	SyncDir(path string) error           // makes the names in a folder durable, or the content of a file
}

// File is a file that is open for writing.
type File interface {
	io.WriteCloser
	Sync() error
	Stat() (os.FileInfo, error)
}

// OSDisk is the operating system's own disk.
type OSDisk struct{}

// Mkdir implements [Disk].
func (OSDisk) Mkdir(path string) error {
	if err := os.Mkdir(path, 0o755); !errors.Is(err, os.ErrExist) {
		return err
	}
	return nil
}

// Create implements [Disk].
func (OSDisk) Create(path string) (File, error) {
	return os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
}

// Append implements [Disk].
func (OSDisk) Append(path string) (File, error) {
	return os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
}

// Truncate implements [Disk].
func (OSDisk) Truncate(path string, n int64) error { return os.Truncate(path, n) }

// Rename implements [Disk].
func (OSDisk) Rename(from, to string) error { return os.Rename(from, to) }

// Remove implements [Disk].
func (OSDisk) Remove(path string) error { return os.RemoveAll(path) }

// SyncDir implements [Disk].
func (OSDisk) SyncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// writeFile replaces the file at path with data, whole or not at all. If durable is
// true, that holds even after a power loss. Until the folder is synced, though, a power
// loss may bring back the old file.
func writeFile(d Disk, path string, data []byte, durable bool) (err error) {
	beside := filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".tmp")
	defer func() {
		if err != nil {
			err = errors.Join(err, d.Remove(beside))
		}
	}()
	if err := writeNew(d, beside, data, durable); err != nil {
		return err
	}
	return d.Rename(beside, path)
}

func writeNew(d Disk, path string, data []byte, durable bool) error {
	f, err := d.Create(path)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil && durable {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("write %s: %w", filepath.Base(path), err)
	}
	return nil
}
