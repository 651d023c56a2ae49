package data

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"headroom/memory"
)

// sparse creates a file of the given size that starts with begin and takes up almost no
// disk space.
func sparse(t *testing.T, name string, begin []byte, size memory.Bytes) {
	t.Helper()
	if err := os.WriteFile(name, begin, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(name, int64(size)); err != nil {
		t.Skip("no sparse files here: ", err)
	}
}

// TestTextLargerThanMemory checks that text that is too large is refused before
// it is read. Reading it would take minutes, and the system would kill the
// process.
func TestTextLargerThanMemory(t *testing.T) {
	dir := folder(t, map[string]string{"a.txt": "hello"})
	book := filepath.Join(dir, "book.txt")
	sparse(t, book, nil, 30*memory.GiB)
	for _, c := range []struct {
		name string
		o    TextOptions
		size memory.Bytes // the size in the error; 0 if the text is accepted
	}{
		{"a file", TextOptions{Path: book, Context: 64, Room: 16 * memory.GiB}, 30 * memory.GiB},
		{"its windows do not fit", TextOptions{Path: book, Context: 64, Room: 30 * memory.GiB}, 30 * memory.GiB},
		{"a folder", TextOptions{Path: dir, Context: 64, Room: 16 * memory.GiB}, 30*memory.GiB + 5},
		{"a limit that is too high", TextOptions{Path: book, Limit: 20 * memory.GiB, Context: 64, Room: 16 * memory.GiB}, 20 * memory.GiB},
		{"a limit", TextOptions{Path: book, Limit: memory.KiB, Context: 64, Room: 2 * memory.KiB}, 0},
		{"a limit before it", TextOptions{Path: dir, Limit: 5, Context: 64, Room: 2 * memory.KiB}, 0},
		{"left out by the pattern", TextOptions{Path: dir, Glob: "a*", Context: 64, Room: 2 * memory.KiB}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := OpenText(c.o)
			var large *TooLargeError
			if !errors.As(err, &large) {
				if c.size > 0 || err != nil {
					t.Errorf("%v", err)
				}
				return
			}
			needs := c.size + (c.size+62)/64*16
			if large.Size != c.size || large.Path != c.o.Path || large.Room != c.o.Room || large.Needs < needs || large.Needs > needs+16 {
				t.Errorf("%+v, want %v", large, c.size)
			}
		})
	}
}

func TestTooLargeSaysWhatToDo(t *testing.T) {
	_, err := OpenText(TextOptions{Path: filepath.Join(folder(t, map[string]string{"a": "12345678"}), "a"), Context: 4, Room: 39})
	if err == nil || !strings.HasSuffix(err.Error(), "/a: 8 B of data needs 40 B of memory, but only 39 B is left; set data.limit to read less, point data.path at less data, or run where there is more memory") {
		t.Error(err)
	}
	if _, err := OpenText(TextOptions{Path: folder(t, map[string]string{"a": "12345678"}), Context: 4, Room: 40}); err != nil {
		t.Errorf("what just fits: %v", err)
	}
}

func TestImagesLargerThanMemory(t *testing.T) {
	dir := t.TempDir()
	head := []byte(idx(nil, 3<<10, 1<<10, 1<<10))
	sparse(t, filepath.Join(dir, imageFile), head, 3*memory.GiB+memory.Bytes(len(head)))
	_, err := OpenIDX(IDXOptions{Path: dir, Classes: 4, Room: memory.GiB})
	var large *TooLargeError
	if !errors.As(err, &large) || large.Size != 3*memory.GiB || large.Path != filepath.Join(dir, imageFile) || large.Key != "data.samples" {
		t.Errorf("%v", err)
	}
	for name, files := range map[string]map[string]string{
		"plain": {imageFile: twoImages, labelFile: twoLabels},
		"gzip":  {imageFile + ".gz": gz(twoImages), labelFile + ".gz": gz(twoLabels)},
	} {
		dir := folder(t, files)
		if _, err := OpenIDX(IDXOptions{Path: dir, Classes: 4, Room: 7}); !errors.As(err, &large) || large.Needs != 8 {
			t.Errorf("%s, 8 bytes into 7: %v", name, err)
		}
		for _, o := range []IDXOptions{{Room: 8}, {Room: 4, Limit: 1}, {}} {
			o.Path, o.Classes = dir, 4
			if _, err := OpenIDX(o); err != nil {
				t.Errorf("%s, %+v: %v", name, o, err)
			}
		}
	}
}

// taken returns the total number of bytes that f allocates, including those
// that are freed before it returns.
func taken(f func()) memory.Bytes {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return memory.Bytes(after.TotalAlloc - before.TotalAlloc)
}

// TestReadingTakesNoMore checks that reading data takes no more memory than the
// check of its size assumes. If reading made a copy, data that passed the check
// would not fit.
func TestReadingTakesNoMore(t *testing.T) {
	const size = 8 * memory.MiB
	text := folder(t, map[string]string{"a": strings.Repeat("a", int(size/2)), "b": strings.Repeat("b", int(size/2))})
	pixels := idx(make([]byte, size), 8<<10, 32, 32)
	images := folder(t, map[string]string{imageFile: pixels, labelFile: idx(make([]byte, 8<<10), 8<<10)})
	zipped := folder(t, map[string]string{imageFile + ".gz": gz(pixels), labelFile: idx(make([]byte, 8<<10), 8<<10)})
	var err error
	for name, c := range map[string]struct {
		read func()
		most memory.Bytes
	}{
		"text":          {func() { _, err = OpenText(TextOptions{Path: text, Context: 64}) }, size * 5 / 4},
		"images":        {func() { _, err = OpenIDX(IDXOptions{Path: images, Classes: 2}) }, size},
		"zipped images": {func() { _, err = OpenIDX(IDXOptions{Path: zipped, Classes: 2}) }, size},
		"a few images":  {func() { _, err = OpenIDX(IDXOptions{Path: images, Classes: 2, Limit: 8}) }, 0},
	} {
		got := taken(c.read)
		if err != nil || got > c.most+memory.MiB {
			t.Errorf("%s: took %v, %v; needs %v", name, got, err, c.most)
		}
	}
}

// TestDamagedHeaderTakesNothing checks that a header costs no memory if it
// declares more than the file can contain.
func TestDamagedHeaderTakesNothing(t *testing.T) {
	short := idx([]byte{1, 2, 3}, 1<<10, 1<<10, 1<<11)
	for name, files := range map[string]map[string]string{
		"plain": {imageFile: short}, "gzip": {imageFile + ".gz": gz(short)},
	} {
		dir := folder(t, files)
		var err error
		got := taken(func() { _, err = OpenIDX(IDXOptions{Path: dir, Classes: 2}) })
		if err == nil || !strings.Contains(err.Error(), "truncated: 3 of 2147483648 bytes") || got > memory.MiB {
			t.Errorf("%s: took %v, %v", name, got, err)
		}
	}
}
