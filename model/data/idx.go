package data

import (
	"bufio"
	"compress/gzip"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"

	"headroom/memory"
)

// IDXOptions say which images [OpenIDX] reads.
type IDXOptions struct {
	Path    string       // folder with train-images-idx3-ubyte and train-labels-idx1-ubyte, with or without .gz
	Classes int          // number of classes, 2 to 256; every label must be below it
	Limit   int          // number of images to read, from the first on; 0 reads all
	Room    memory.Bytes // memory that may be used; 0 means not known and sets no bound
}

// Images is a set of labelled images in the IDX format of MNIST and its family. A pixel p
// becomes the feature (p − mean)/deviation, with mean and deviation computed over all
// pixels of the set, so that features have mean 0 and variance 1. Images is safe for
// concurrent use.
type Images struct {
	pixels      []byte
	labels      []byte
	size        int // pixels per image
	classes     int
	scale       [256]float32 // the feature for each pixel value
	fingerprint string
}

// OpenIDX reads the images and labels in the folder o.Path. Missing, truncated
// and inconsistent files are errors, as is a label that is not below Classes. If
// the images do not fit into o.Room, the error is a *[TooLargeError] and none of
// them is read.
func OpenIDX(o IDXOptions) (*Images, error) {
	if o.Classes < 2 || o.Classes > 256 {
		return nil, fmt.Errorf("read images: %d classes: must be 2 to 256", o.Classes)
	}
	dims, pixels, name, err := o.read("train-images", 3)
	if err != nil {
		return nil, fmt.Errorf("read images: %w", err)
	}
	counts, labels, labelName, err := o.read("train-labels", 1)
	if err != nil {
		return nil, fmt.Errorf("read images: %w", err)
	}
	if dims[0] != counts[0] {
		return nil, fmt.Errorf("read images: %d images in %s, but %d labels in %s", dims[0], name, counts[0], labelName)
	}
	for i, label := range labels {
		if int(label) >= o.Classes {
			return nil, fmt.Errorf("read images: %s: label %d of image %d: must be below data.classes (%d)", labelName, label, i, o.Classes)
		}
	}
	s := &Images{pixels: pixels, labels: labels, size: dims[1] * dims[2], classes: o.Classes}
	s.normalise()
	s.fingerprint = s.digest()
	return s, nil
}

// normalise computes the features. It takes mean and variance from a histogram
// of the pixels, so their sums are exact and do not depend on the order of the
// pixels.
func (s *Images) normalise() {
	var counts [256]int64
	for _, p := range s.pixels {
		counts[p]++
	}
	var sum, squares float64
	for p, n := range counts {
		sum += float64(p) * float64(n)
		squares += float64(p) * float64(p) * float64(n)
	}
	total := float64(len(s.pixels))
	mean := sum / total
	deviation := math.Sqrt(max(0, squares/total-mean*mean))
	if deviation == 0 {
		deviation = 1 // all pixels are equal: all features become 0
	}
	for p := range s.scale {
		s.scale[p] = float32((float64(p) - mean) / deviation)
	}
}

func (s *Images) digest() string {
	h := sha256.New()
	_, _ = fmt.Fprintf(h, "%d %d %d\n", len(s.labels), s.size, s.classes)
	h.Write(s.pixels)
	h.Write(s.labels)
	return "idx-" + hex.EncodeToString(h.Sum(nil)[:16])
}

// Len returns the number of images.
func (s *Images) Len() int { return len(s.labels) }

// Shape returns one feature per pixel, and the number of classes in the options.
func (s *Images) Shape() Shape { return Shape{Features: s.size, Classes: s.classes} }

// Fingerprint depends on the pixels, the labels and their order, and on the
// number of classes.
func (s *Images) Fingerprint() string { return s.fingerprint }

// Sample writes image i into dst.
func (s *Images) Sample(i int, dst *Sample) error {
	if err := check(s, i, dst); err != nil {
		return err
	}
	for p, v := range s.pixels[i*s.size : (i+1)*s.size] {
		dst.Features[p] = s.scale[v]
	}
	dst.Targets[0] = int32(s.labels[i])
	return nil
}

// candidates returns the paths at which a file of the data set may be: with a
// dash or a dot after the stem, and with or without .gz.
func candidates(folder, stem string, dims int) []string {
	var names []string
	for _, joint := range []string{"-", "."} {
		base := filepath.Join(folder, fmt.Sprintf("%s%sidx%d-ubyte", stem, joint, dims))
		names = append(names, base, base+".gz")
	}
	return names
}

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
