package data

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"headroom/device"
	"headroom/memory"
)

// Vocabulary is the number of tokens of [Text]: one per byte value.
const Vocabulary = 256

// TextOptions say which bytes to read and how to cut them.
type TextOptions struct {
	Path    string       // a file, or a folder that is read with everything below it
	Glob    string       // base names to read in a folder, a pattern of path.Match; "" reads all
	Limit   memory.Bytes // at most this many bytes, the last file cut short; 0 reads all
	Context int          // tokens per sample, T; at least 1
	Room    memory.Bytes // memory that may be used; 0 if not known, which sets no bound
}

// Text is files cut into windows of bytes. A sample is T tokens and the token
// that follows each; so a window spans T+1 bytes, and the next one begins with
// the last byte of the one before. Windows never cross files: a file's last
// window is padded with token 0 and targets that do not count. The bytes are
// held in memory. Text is safe for concurrent use.
type Text struct {
	context     int
	bytes       []byte
	windows     []window
	files       int
	fingerprint string
}

// window is a sample: bytes [from, to), at most T+1 of them and at least two.
type window struct{ from, to int }

// OpenText reads the files that o names: folders in lexical order, without names
// that begin with a dot and without following symbolic links below Path.
// Unreadable files and too little text for one sample are errors. If the text
// does not fit into o.Room, the error is a *[TooLargeError] and none of it is
// read.
func OpenText(o TextOptions) (*Text, error) {
	if o.Context < 1 {
		return nil, fmt.Errorf("read text: %d tokens per sample: must be at least 1", o.Context)
	}
	files, err := listFiles(o.Path, o.Glob)
	if err != nil {
		return nil, fmt.Errorf("read text: %w", err)
	}
	size, windows, err := o.measure(files)
	if err == nil {
		needs := size + memory.Bytes(windows)*windowBytes
		err = fits(TooLargeError{Path: o.Path, Size: size, Needs: needs, Room: o.Room, Key: "data.limit"})
	}
	if err != nil {
		return nil, fmt.Errorf("read text: %w", err)
	}
	// Allocated all at once: growing would copy, and hold the text twice. The extra
	// byte is for finding the end of the last file.
	t := &Text{context: o.Context, bytes: make([]byte, 0, size+1), windows: make([]window, 0, windows)}
	for _, name := range files {
		if o.Limit > 0 && memory.Bytes(len(t.bytes)) >= o.Limit {
			break
		}
		if err := t.read(name, o.Limit); err != nil {
			return nil, fmt.Errorf("read text: %w", err)
		}
	}
	if len(t.windows) == 0 {
		return nil, fmt.Errorf("read text: %s: too little text (files: %d, bytes: %d); a sample needs a file of at least 2 bytes", o.Path, len(files), len(t.bytes))
	}
	t.fingerprint = t.digest()
	return t, nil
}

// windowBytes is the memory that a window takes.
const windowBytes = 16

// measure returns how many bytes of files o reads, and how many windows they
// make.
func (o TextOptions) measure(files []string) (size memory.Bytes, windows int, err error) {
	for _, name := range files {
		if o.Limit > 0 && size >= o.Limit {
			break
		}
		info, err := os.Stat(name)
		if err != nil {
			return 0, 0, err
		}
		n := int(info.Size())
		if o.Limit > 0 {
			n = min(n, int(o.Limit-size))
		}
		size += memory.Bytes(n)
		windows += (max(0, n-1) + o.Context - 1) / o.Context
	}
	return size, windows, nil
}

func (t *Text) read(name string, limit memory.Bytes) (err error) {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	from := len(t.bytes)
	if err := t.fill(f, limit); err != nil {
		return err
	}
	t.files++
	for ; from+1 < len(t.bytes); from += t.context {
		t.windows = append(t.windows, window{from, min(from+t.context+1, len(t.bytes))})
	}
	return nil
}

// fill reads r to its end or to limit. Files that do not report their size, or
// that grow, are read too.
func (t *Text) fill(r io.Reader, limit memory.Bytes) error {
	for limit == 0 || memory.Bytes(len(t.bytes)) < limit {
		t.bytes = slices.Grow(t.bytes, 1)
		free := t.bytes[len(t.bytes):cap(t.bytes)]
		if limit > 0 {
			free = free[:min(memory.Bytes(len(free)), limit-memory.Bytes(len(t.bytes)))]
		}
		n, err := r.Read(free)
		t.bytes = t.bytes[:len(t.bytes)+n]
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// digest covers the windows too, so that the same bytes split into other files,
// or cut differently, count as different data.
func (t *Text) digest() string {
	h := sha256.New()
	var cut [windowBytes]byte
	for _, w := range t.windows {
		binary.LittleEndian.PutUint64(cut[:], uint64(w.from))
		binary.LittleEndian.PutUint64(cut[8:], uint64(w.to))
		h.Write(cut[:])
	}
	h.Write(t.bytes)
	return fmt.Sprintf("text-%d-%s", t.context, hex.EncodeToString(h.Sum(nil)[:16]))
}

// Len is the number of windows.
func (t *Text) Len() int { return len(t.windows) }

// Shape has T tokens over the [Vocabulary].
func (t *Text) Shape() Shape { return Shape{Tokens: t.context, Classes: Vocabulary} }

// Fingerprint depends on the bytes and on where windows begin, not on the names
// of files.
func (t *Text) Fingerprint() string { return t.fingerprint }

// Files is how many files were read.
func (t *Text) Files() int { return t.files }

// Bytes is how much text was read.
func (t *Text) Bytes() memory.Bytes { return memory.Bytes(len(t.bytes)) }

// Sample writes window i into s.
func (t *Text) Sample(i int, s *Sample) error {
	if err := check(t, i, s); err != nil {
		return err
	}
	w := t.bytes[t.windows[i].from:t.windows[i].to]
	for p := range s.Tokens {
		s.Tokens[p], s.Targets[p] = 0, device.IgnoreIndex
		if p < len(w) {
			s.Tokens[p] = int32(w[p])
		}
		if p+1 < len(w) {
			s.Targets[p] = int32(w[p+1])
		}
	}
	return nil
}
