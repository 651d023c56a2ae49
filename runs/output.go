package runs

import (
	"errors"
	"fmt"
	"os"
)

// outputPart is how many bytes of an attempt's output go into one file.
const outputPart = 64 << 20

// Output writes to logs/output-NNN.log what a wrapped command prints during an attempt.
// When that file is full, it is set aside and a new one is begun, so that a command which
// prints without end does not fill the disk. The first part is kept as
// output-NNN.first.log. Of the later parts, only the newest full one is kept, as
// output-NNN.previous.log. An Output is for use by one goroutine.
type Output struct {
	base string // the file's path without .log
	part int64
	file *os.File
	size int64
}

// Output opens an attempt's output for appending. The caller closes it.
func (f *Folder) Output(attempt int) (*Output, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	o := &Output{base: f.path("logs", fmt.Sprintf("output-%03d", attempt)), part: outputPart}
	return o, f.kept(o.open)
}

func (o *Output) open() error {
	file, err := os.OpenFile(o.base+".log", os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	info, err := file.Stat()
	if err != nil {
		return errors.Join(err, file.Close())
	}
	o.file, o.size = file, info.Size()
	return nil
}

// Write appends p. It never splits p between two files.
func (o *Output) Write(p []byte) (int, error) {
	if o.size > 0 && o.size+int64(len(p)) > o.part {
		if err := o.rotate(); err != nil {
			return 0, err
		}
	}
	n, err := o.file.Write(p)
	o.size += int64(n)
	return n, err
}

// rotate sets the full file aside. Even after an error there is a file to write to.
func (o *Output) rotate() error {
	aside := o.base + ".first.log"
	if _, err := os.Stat(aside); err == nil {
		aside = o.base + ".previous.log"
	}
	if err := os.Rename(o.base+".log", aside); err != nil {
		return err
	}
	full := o.file
	if err := o.open(); err != nil {
		return err
	}
	return full.Close()
}

// Close closes the file.
func (o *Output) Close() error { return o.file.Close() }
