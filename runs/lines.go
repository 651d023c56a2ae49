package runs

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
)

// pendingLimit bounds how many bytes are kept for a file that cannot be written. It is
// enough for about 40,000 lines of metrics.
const pendingLimit = 16 << 20

// lines is a file to which lines of JSON are appended. Lines are kept in memory until
// they are written. So no line is lost while the disk is full, unless more bytes are
// waiting than limit allows.
type lines struct {
	disk    Disk
	path    string
	file    File
	size    int64  // bytes of whole lines in the file
	torn    bool   // the file may hold more than size bytes
	synced  bool   // nothing has been written since the last fsync
	first   []byte // the line with which the file begins, written again if it is removed; nil if none needs to be
	pending []byte // whole lines still to be written
	limit   int    // most bytes in pending
	lost    int    // lines dropped because of the limit
	removed bool   // somebody removed or replaced the file; cleared once that is reported
}

// openLines opens path for appending. It first cuts off everything after the last
// readable line, such as the part of a line that a crash left. cut is the number of
// bytes that were cut off.
func openLines(d Disk, path string) (l *lines, cut int64, err error) {
	size, cut, err := wholeLines(path)
	if err != nil {
		return nil, 0, err
	}
	if cut > 0 {
		if err := d.Truncate(path, size); err != nil {
			return nil, 0, err
		}
	}
	f, err := d.Append(path)
	if err != nil {
		return nil, 0, err
	}
	return &lines{disk: d, path: path, file: f, size: size, synced: true, limit: pendingLimit}, cut, nil
}

// add appends v, as a line, to the pending lines. It drops the oldest lines beyond the
// limit. It returns an error only if JSON cannot represent v.
func (l *lines) add(v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	l.pending = append(append(l.pending, text...), '\n')
	for len(l.pending) > l.limit {
		l.pending = l.pending[bytes.IndexByte(l.pending, '\n')+1:]
		l.lost++
	}
	return nil
}

// begins makes v the line with which the file begins, even after somebody has removed it. v has
// been written already.
func (l *lines) begins(v any) {
	text, _ := json.Marshal(v)
	l.first = append(text, '\n')
}

// flush writes the pending lines. If durable is true, it also waits for the disk. After
// an error, all of them are still pending; the next flush first cuts off what the
// failed write left in the file, so that nothing is written twice.
func (l *lines) flush(durable bool) error {
	if err := l.follow(); err != nil {
		return err
	}
	if l.torn {
		if err := l.disk.Truncate(l.path, l.size); err != nil {
			return err
		}
		l.torn = false
	}
	if len(l.pending) > 0 {
		l.torn = true
		if _, err := l.file.Write(l.pending); err != nil {
			return err
		}
		l.synced = false
	}
	if durable && !l.synced {
		if err := l.file.Sync(); err != nil {
			return err
		}
		l.synced = true
	}
	l.torn = false
	l.size += int64(len(l.pending))
	l.pending = l.pending[:0]
	return nil
}

// follow reopens the file if somebody has removed or replaced it: nobody could read
// lines written to a file without a name.
func (l *lines) follow() error {
	if still(l.path, l.file) {
		return nil
	}
	size, _, err := wholeLines(l.path)
	if err != nil {
		return err
	}
	f, err := l.disk.Append(l.path)
	if err != nil {
		return err
	}
	old := l.file
	l.file, l.size, l.torn, l.synced, l.removed = f, size, true, false, true
	if size == 0 && !bytes.HasPrefix(l.pending, l.first) {
		l.pending = slices.Concat(l.first, l.pending)
	}
	return old.Close()
}

func (l *lines) close() error { return errors.Join(l.flush(true), l.file.Close()) }

// TornError reports that some lines of a file cannot be read: the last line, if the run
// was killed or is still writing it, or damaged lines further up. All other lines were
// read and are returned with the error.
type TornError struct {
	File  string // base name
	Lines []int  // line numbers, from 1
}

func (e *TornError) Error() string {
	return fmt.Sprintf("read %s: line %d is incomplete or damaged and was left out (lines left out: %d)", e.File, e.Lines[0], len(e.Lines))
}

// readLines reads every line of path as a T. Lines that are not a T are left out and
// named in a *TornError. A missing file has no lines.
func readLines[T any](path string) ([]T, error) {
	var all []T
	torn := &TornError{File: filepath.Base(path)}
	err := eachLine(path, func(n int, line []byte, whole bool) bool {
		var v T
		if !whole || json.Unmarshal(line, &v) != nil {
			torn.Lines = append(torn.Lines, n)
		} else {
			all = append(all, v)
		}
		return true
	})
	if err == nil && len(torn.Lines) > 0 {
		err = torn
	}
	return all, err
}

// wholeLines returns the size of path up to the end of its last readable line, and how
// many bytes follow that line.
func wholeLines(path string) (size, rest int64, err error) {
	err = eachLine(path, func(_ int, line []byte, whole bool) bool {
		rest += int64(len(line))
		if whole && json.Valid(line) {
			size, rest = size+rest, 0
		}
		return true
	})
	return size, rest, err
}

// eachLine calls use with every line of path until use returns false. n counts the
// lines from 1, line includes the newline, and whole is false if there is none. A
// missing file has no lines.
func eachLine(path string, use func(n int, line []byte, whole bool) bool) error {
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // only read
	in := bufio.NewReaderSize(f, 1<<16)
	for n := 1; ; n++ {
		line, err := in.ReadBytes('\n')
		if err != nil && !errors.Is(err, io.EOF) {
			return fmt.Errorf("read %s: %w", filepath.Base(path), err)
		}
		if len(line) > 0 && !use(n, line, err == nil) || err != nil {
			return nil
		}
	}
}
