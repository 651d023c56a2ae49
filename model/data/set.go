package data

import "fmt"

// Sample is one training example.
//
// Text has Tokens and as many Targets: Targets[t] is the token that follows
// Tokens[t], or device.IgnoreIndex for a target that does not count. Images and
// other features have Features and one target, their class.
type Sample struct {
	Tokens   []int32
	Features []float32
	Targets  []int32
}

// Shape is what the samples of a set have in common.
type Shape struct {
	Tokens   int // tokens per sample, T; 0 for a set of features
	Features int // features per sample; 0 for text
	Classes  int // size of the vocabulary, or number of classes; targets are below it
}

// Targets is the number of targets per sample: one per token, or one class.
func (s Shape) Targets() int { return max(1, s.Tokens) }

// New returns a sample of this shape, to be filled by a [Set].
func (s Shape) New() *Sample {
	return &Sample{
		Tokens:   make([]int32, s.Tokens),
		Features: make([]float32, s.Features),
		Targets:  make([]int32, s.Targets()),
	}
}

// Set is a fixed collection of samples. It is safe for concurrent use.
type Set interface {
	// Len is the number of samples; at least 1.
	Len() int
	// Shape is the same for every sample of the set.
	Shape() Shape
	// Sample writes sample i, 0 ≤ i < Len, into s, whose slices have the lengths
	// that Shape gives and stay the caller's. Any other index or lengths are an
	// error.
	Sample(i int, s *Sample) error
	// Fingerprint identifies the contents and their order: sets with the same
	// fingerprint have the same samples at the same indices.
	Fingerprint() string
}

// check refuses what would read or write out of bounds.
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
