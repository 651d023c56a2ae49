package data

import "fmt"

// Sample is one training example.
//
// A sample of text has Tokens and the same number of Targets. Targets[t] is the
// token that follows Tokens[t], or device.IgnoreIndex for a target that does not
// count. A sample of images or other features has Features and one target, its
// class.
type Sample struct {
	Tokens   []int32
	Features []float32
	Targets  []int32
}

// Shape holds the sizes that all samples of a set share.
type Shape struct {
	Tokens   int // tokens per sample, T; 0 for a set of features
	Features int // features per sample; 0 for text
	Classes  int // size of the vocabulary, or number of classes; targets are below it
}

// Targets returns the number of targets per sample: one per token, or one class.
func (s Shape) Targets() int { return max(1, s.Tokens) }

// New returns a sample of this shape for a [Set] to fill.
func (s Shape) New() *Sample {
	return &Sample{
		Tokens:   make([]int32, s.Tokens),
		Features: make([]float32, s.Features),
		Targets:  make([]int32, s.Targets()),
	}
}

// Set is a fixed collection of samples. It is safe for concurrent use.
type Set interface {
	// Len returns the number of samples, at least 1.
	Len() int
	// Shape returns the shape that every sample of the set has.
	Shape() Shape
	// Sample writes sample i, 0 ≤ i < Len, into s. The slices of s must have the lengths
	// that Shape gives; they still belong to the caller afterwards. Sample returns an error
	// for any other index or length.
	Sample(i int, s *Sample) error
	// Fingerprint identifies the contents and their order: sets with the same
	// fingerprint have the same samples at the same indices.
	Fingerprint() string
}

// check returns an error if set has no sample i, or if the slices of s do not
// have the lengths that the set's shape gives.
func check(set Set, i int, s *Sample) error {
	if i < 0 || i >= set.Len() {
		return fmt.Errorf("sample %d: must be 0 to %d", i, set.Len()-1)
	}
	shape := set.Shape()
	got := [3]int{len(s.Tokens), len(s.Features), len(s.Targets)}
	want := [3]int{shape.Tokens, shape.Features, shape.Targets()}
	if got != want {
		return fmt.Errorf("sample %d: room for %d tokens, %d features and %d targets, but %d, %d and %d are needed",
			i, got[0], got[1], got[2], want[0], want[1], want[2])
	}
	return nil
}
