package data

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math"
	"path/filepath"

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
