package data

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math"
	"path/filepath"

	"headroom/memory"
)

// IDXOptions say which images to read.
type IDXOptions struct {
	Path    string       // folder with train-images-idx3-ubyte and train-labels-idx1-ubyte, each possibly .gz
	Classes int          // labels are below this; at least 2
	Limit   int          // at most this many images, the first ones; 0 reads all
	Room    memory.Bytes // memory that may be used; 0 if not known, which sets no bound
}

// Images is a set of labelled images in the IDX format of MNIST and its family.
// A pixel p becomes (p − mean)/deviation over all pixels of the set, so that
// features have mean 0 and variance 1. Images is safe for concurrent use.
type Images struct {
	pixels      []byte
	labels      []byte
	size        int // pixels per image
	classes     int
	scale       [256]float32 // a pixel's feature
	fingerprint string
}

// OpenIDX reads a folder. Missing, truncated and inconsistent files are errors,
// as is a label that is not below Classes. If the images do not fit into o.Room,
// the error is a *[TooLargeError] and none of them is read.
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

// normalise computes mean and variance from a histogram, which is exact and
// does not depend on the order of the pixels.
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
		deviation = 1 // one shade everywhere: features are 0
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

// Len is the number of images.
func (s *Images) Len() int { return len(s.labels) }

// Shape has one feature per pixel.
func (s *Images) Shape() Shape { return Shape{Features: s.size, Classes: s.classes} }

// Fingerprint depends on pixels, labels and their order.
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

// candidates are the names under which the files of the family are found.
func candidates(folder, stem string, dims int) []string {
	var names []string
	for _, joint := range []string{"-", "."} {
		base := filepath.Join(folder, fmt.Sprintf("%s%sidx%d-ubyte", stem, joint, dims))
		names = append(names, base, base+".gz")
	}
	return names
}
