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

// TextOptions say which bytes [OpenText] reads and how it cuts them into samples.
type TextOptions struct {
	Path    string       // a file, or a folder whose files are read at every depth
	Glob    string       // path.Match pattern for base names in a folder; "" reads all
	Limit   memory.Bytes // number of bytes to read at most, with the last file cut short; 0 reads all
	Context int          // tokens per sample, T; at least 1
	Room    memory.Bytes // memory that may be used; 0 means not known and sets no bound
}

// Text is a set of samples cut from files. A sample has T tokens and, as the target of
// each, the token that follows. So a sample comes from a window of T+1 bytes, and the last
// byte of a window is the first byte of the next one. Windows never cross files: a file's
// last window is padded with token 0 and targets that do not count. The bytes are held in
// memory. Text is safe for concurrent use.
type Text struct {
	context     int
	bytes       []byte
	windows     []window
	files       int
	fingerprint string
}

// window is the place of a sample in the text: bytes [from, to), at least two and at most
// T+1 of them.
type window struct{ from, to int }

// OpenText reads the files that o names. It reads the files of a folder in lexical order, leaves
// out names that begin with a dot, and follows no symbolic links below Path. It returns an error if
// a file cannot be read or if there is too little text for one sample. If the text does not fit
// into o.Room, the error is a *[TooLargeError] and none of it is read.
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
	// Allocate everything at once: growing would hold the text twice. The extra
	// byte leaves room for the read that finds the end of the last file.
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

// windowBytes is the size of a window in memory, in bytes.
const windowBytes = 16

// measure returns how many bytes of the files are to be read, and how many
// windows they make.
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

// fill appends the contents of r to the text, but stops when the size of the text reaches
// limit; if limit is 0, there is no limit. It does not rely on the reported size of a
// file, which may be missing or out of date.
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

// digest returns the fingerprint. It covers the windows too, so that the same bytes count
// as different data if the files or the windows divide them differently.
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

// Len returns the number of windows.
func (t *Text) Len() int { return len(t.windows) }

// Shape returns T tokens per sample and [Vocabulary] classes.
func (t *Text) Shape() Shape { return Shape{Tokens: t.context, Classes: Vocabulary} }

// Fingerprint depends on the bytes and on where the windows begin and end, not on
// the names of the files.
func (t *Text) Fingerprint() string { return t.fingerprint }

// Files returns the number of files that were read.
func (t *Text) Files() int { return t.files }

// Bytes returns the size of the text that was read.
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
