package data

import (
	"bufio"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
)

// maxIDX bounds what one file may hold, so that a damaged header does not ask
// for all memory: the largest of the family (EMNIST) holds 0.6 GB.
const maxIDX = 4 << 30

// readIDX reads the first file there is of those that [candidates] names.
func readIDX(folder, stem string, dims int) (shape []int, content []byte, name string, err error) {
	names := candidates(folder, stem, dims)
	for _, name = range names {
		f, err := os.Open(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, nil, name, err
		}
		shape, content, err = decodeFile(f, dims)
		if err = errors.Join(err, f.Close()); err != nil {
			return nil, nil, name, fmt.Errorf("%s: %w", name, err)
		}
		return shape, content, name, nil
	}
	return nil, nil, "", fmt.Errorf("%s, also with .gz: %w", names[0], fs.ErrNotExist)
}

func decodeFile(f *os.File, dims int) ([]int, []byte, error) {
	if !strings.HasSuffix(f.Name(), ".gz") {
		return decodeIDX(f, dims)
	}
	z, err := gzip.NewReader(bufio.NewReader(f))
	if err != nil {
		return nil, nil, err
	}
	return decodeIDX(z, dims)
}

// decodeIDX reads one IDX file of unsigned bytes: two zero bytes, the type
// (8), the number of dimensions, each dimension in four bytes, big end first,
// and the contents.
func decodeIDX(r io.Reader, dims int) (shape []int, content []byte, err error) {
	header := make([]byte, 4+4*dims)
	if n, err := io.ReadFull(r, header); err != nil {
		return nil, nil, fmt.Errorf("truncated: %d of %d bytes of header: %w", n, len(header), err)
	}
	want := [4]byte{0, 0, 8, byte(dims)}
	if magic := [4]byte(header); magic != want {
		return nil, nil, fmt.Errorf("begins with % x, an IDX file of %d dimensions with % x", magic, dims, want)
	}
	size := int64(1)
	for d := range dims {
		n := int64(binary.BigEndian.Uint32(header[4+4*d:]))
		if n == 0 {
			return nil, nil, fmt.Errorf("dimension %d is 0: nothing in it", d)
		}
		if size > maxIDX/n {
			return nil, nil, fmt.Errorf("dimension %d is %d: more than the %d bytes that are read", d, n, int64(maxIDX))
		}
		size *= n
		shape = append(shape, int(n))
	}
	content, err = io.ReadAll(io.LimitReader(r, size+1))
	switch {
	case err != nil:
		return nil, nil, fmt.Errorf("truncated after %d of %d bytes: %w", len(content), size, err)
	case int64(len(content)) < size:
		return nil, nil, fmt.Errorf("truncated: %d of %d bytes", len(content), size)
	case int64(len(content)) > size:
		return nil, nil, fmt.Errorf("more than the %d bytes that its header tells", size)
	}
	return shape, content, nil
}
