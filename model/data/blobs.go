package data

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math"
	"math/rand/v2"
)

// Blobs is a set that needs no files. Each class has a centre, and a sample is
// a random point near the centre of its class. A point is computed from (seed,
// index) when it is needed. The centres lie in random directions at
// [BlobRadius] from the origin, and the noise around them has standard
// deviation 1 in each feature. So the classes overlap only a little, whatever
// the number of features, and a model can learn them. Blobs is safe for
// concurrent use.
type Blobs struct {
	o           BlobOptions
	centres     [][]float32
	fingerprint string
}

// BlobOptions describe the points of [Blobs].
type BlobOptions struct {
	Seed     uint64
	Samples  int // at least 1
	Features int // at least 1
	Classes  int // at least 2
}

// BlobRadius is the distance of the centres from the origin. Two centres in
// orthogonal directions are √2 times that distance apart, so a point lies
// nearer to the other centre than to its own with probability Φ(−4/√2) ≈ 0.2 %.
const BlobRadius = 4

// NewBlobs draws the centres and returns the set. It returns an error if an
// option is below its minimum.
func NewBlobs(o BlobOptions) (*Blobs, error) {
	if o.Samples < 1 || o.Features < 1 || o.Classes < 2 {
		return nil, fmt.Errorf("draw blobs: %d samples of %d features in %d classes: must be at least 1, 1 and 2", o.Samples, o.Features, o.Classes)
	}
	b := &Blobs{o: o, centres: make([][]float32, o.Classes)}
	for c := range b.centres {
		b.centres[c] = centre(o, c)
	}
	return b, b.sign()
}

func centre(o BlobOptions, class int) []float32 {
	// The complement of class keeps the random streams of the centres apart
	// from those of the samples.
	rng := rand.New(rand.NewPCG(o.Seed, mix(^uint64(class))))
	v := make([]float32, o.Features)
	var squares float64
	for i := range v {
		v[i] = float32(rng.NormFloat64())
		squares += float64(v[i]) * float64(v[i])
	}
	for i := range v {
		v[i] *= BlobRadius / float32(math.Sqrt(squares))
	}
	return v
}

// sign computes the fingerprint from the options and the first points. The
// points are included because another version of the generator would draw other
// data from the same options.
func (b *Blobs) sign() error {
	h := sha256.New()
	_, _ = fmt.Fprintf(h, "%+v\n", b.o)
	s := b.Shape().New()
	for i := range min(b.o.Samples, 16) {
		if err := b.Sample(i, s); err != nil {
			return err
		}
		for _, f := range s.Features {
			h.Write(binary.LittleEndian.AppendUint32(nil, math.Float32bits(f)))
		}
	}
	b.fingerprint = "blobs-" + hex.EncodeToString(h.Sum(nil)[:16])
	return nil
}

// Len returns the number of samples.
func (b *Blobs) Len() int { return b.o.Samples }

// Shape returns the numbers of features and classes in the options.
func (b *Blobs) Shape() Shape { return Shape{Features: b.o.Features, Classes: b.o.Classes} }

// Fingerprint depends on the options and on the first points drawn from them.
func (b *Blobs) Fingerprint() string { return b.fingerprint }

// Sample draws point i. Its class is i modulo the number of classes.
func (b *Blobs) Sample(i int, s *Sample) error {
	if err := check(b, i, s); err != nil {
		return err
	}
	rng := rand.New(rand.NewPCG(b.o.Seed, mix(uint64(i))))
	class := i % b.o.Classes
	for f, c := range b.centres[class] {
		s.Features[f] = c + float32(rng.NormFloat64())
	}
	s.Targets[0] = int32(class)
	return nil
}
