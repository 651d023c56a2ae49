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

	"headroom/memory"
)

// maxIDX is the largest size of contents, in bytes, that the header of a file may
// declare, so that a damaged header does not ask for all memory. The largest data
// set of the family, EMNIST, holds 0.6 GB.
const maxIDX = 4 << 30

// read reads the first of the [candidates] that exists. The content that it returns ends
// after o.Limit items.
func (o IDXOptions) read(stem string, dims int) (shape []int, content []byte, name string, err error) {
	names := candidates(o.Path, stem, dims)
	for _, name = range names {
		f, err := os.Open(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, nil, name, err
		}
		shape, content, err = o.decodeFile(f, dims)
		err = errors.Join(err, f.Close())
		if large := (*TooLargeError)(nil); errors.As(err, &large) {
			large.Path = name
			return nil, nil, name, large
		}
		if err != nil {
			return nil, nil, name, fmt.Errorf("%s: %w", name, err)
		}
		return shape, content, name, nil
	}
	return nil, nil, "", fmt.Errorf("%s, with or without .gz: %w", names[0], fs.ErrNotExist)
}

// mostInflated is the largest number of bytes to which one byte of a gzip file can
// expand.
const mostInflated = 1032

func (o IDXOptions) decodeFile(f *os.File, dims int) ([]int, []byte, error) {
	most := int64(maxIDX)
	info, err := f.Stat()
	if err != nil {
		return nil, nil, err
	}
	zipped := strings.HasSuffix(f.Name(), ".gz")
	if info.Mode().IsRegular() && zipped {
		most = min(most, info.Size()*mostInflated)
	} else if info.Mode().IsRegular() {
		most = min(most, info.Size())
	}
	if !zipped {
		return o.decode(f, dims, most)
	}
	z, err := gzip.NewReader(bufio.NewReader(f))
	if err != nil {
		return nil, nil, err
	}
	return o.decode(z, dims, most)
}

// decode reads one IDX file whose contents have at most the given number of bytes. The
// content that it returns ends after o.Limit items. It reads the other items too, to check
// that the file is complete.
func (o IDXOptions) decode(r io.Reader, dims int, most int64) (shape []int, content []byte, err error) {
	shape, size, err := idxHeader(r, dims)
	if err != nil {
		return nil, nil, err
	}
	keep := size
	if o.Limit > 0 && o.Limit < shape[0] {
		keep = size / int64(shape[0]) * int64(o.Limit)
	}
	kept := memory.Bytes(keep)
	if err := fits(TooLargeError{Size: kept, Needs: kept, Room: o.Room, Key: "data.samples"}); err != nil {
		return nil, nil, err
	}
	// Allocate content all at once: growing it would keep two copies of the images in
	// memory. A damaged header can ask for no more than the file can contain.
	content = make([]byte, min(keep, most))
	n, err := io.ReadFull(r, content)
	read := int64(n)
	if err == nil {
		var rest int64
		rest, err = io.Copy(io.Discard, io.LimitReader(r, size-read+1))
		read += rest
	} else if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = nil
	}
	switch {
	case err != nil:
		return nil, nil, fmt.Errorf("truncated after %d of %d bytes: %w", read, size, err)
	case read < size || int64(n) < keep:
		return nil, nil, fmt.Errorf("truncated: %d of %d bytes", read, size)
	case read > size:
		return nil, nil, fmt.Errorf("contains more than the %d bytes that its header declares", size)
	}
	return shape, content, nil
}

// idxHeader reads the header of an IDX file of unsigned bytes: two zero bytes, the
// type (8), the number of dimensions, and each dimension in four bytes,
// big-endian. size is the number of bytes of contents that follow.
func idxHeader(r io.Reader, dims int) (shape []int, size int64, err error) {
	header := make([]byte, 4+4*dims)
	if n, err := io.ReadFull(r, header); err != nil {
		return nil, 0, fmt.Errorf("truncated: %d of %d bytes of header: %w", n, len(header), err)
	}
	want := [4]byte{0, 0, 8, byte(dims)}
	if magic := [4]byte(header); magic != want {
		return nil, 0, fmt.Errorf("begins with % x, but an IDX file of %d dimensions begins with % x", magic, dims, want)
	}
	size = 1
	for d := range dims {
		n := int64(binary.BigEndian.Uint32(header[4+4*d:]))
		if n == 0 {
			return nil, 0, fmt.Errorf("dimension %d is 0: must be at least 1", d)
		}
		if size > maxIDX/n {
			return nil, 0, fmt.Errorf("dimension %d is %d: the contents would exceed the %d bytes that may be read", d, n, int64(maxIDX))
		}
		size *= n
		shape = append(shape, int(n))
	}
	return shape, size, nil
}
