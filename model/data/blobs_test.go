package data

import (
	"math"
	"slices"
	"testing"
)

func TestBlobs(t *testing.T) {
	o := BlobOptions{Seed: 1, Samples: 1000, Features: 20, Classes: 5}
	b, err := NewBlobs(o)
	if err != nil {
		t.Fatal(err)
	}
	s, right := b.Shape().New(), 0
	for i := range b.Len() {
		if err := b.Sample(i, s); err != nil {
			t.Fatal(err)
		}
		if s.Targets[0] != int32(i%5) {
			t.Fatalf("sample %d is of class %d", i, s.Targets[0])
		}
		if nearest(b.centres, s.Features) == i%5 {
			right++
		}
	}
	// The classes can be told apart, but not always.
	if right < 950 || right == b.Len() {
		t.Errorf("the nearest centre is right for %d of %d", right, b.Len())
	}
}

func nearest(centres [][]float32, x []float32) int {
	best, least := -1, math.Inf(1)
	for c, centre := range centres {
		var d float64
		for i := range x {
			d += float64((x[i] - centre[i]) * (x[i] - centre[i]))
		}
		if d < least {
			best, least = c, d
		}
	}
	return best
}

func TestBlobsDependOnSeedAndIndexAlone(t *testing.T) {
	o := BlobOptions{Seed: 1, Samples: 10, Features: 3, Classes: 2}
	draw := func(seed uint64, indices ...int) *Sample {
		o := o
		o.Seed = seed
		b, err := NewBlobs(o)
		if err != nil {
			t.Fatal(err)
		}
		s := b.Shape().New()
		for _, i := range indices {
			if err := b.Sample(i, s); err != nil {
				t.Fatal(err)
			}
		}
		return s
	}
	a := draw(1, 4).Features
	if b := draw(1, 7, 0, 4).Features; !slices.Equal(a, b) {
		t.Errorf("sample 4 is %v, after others %v", a, b)
	}
	for name, s := range map[string]*Sample{"seed": draw(2, 4), "index": draw(1, 6)} {
		if slices.Equal(a, s.Features) {
			t.Errorf("another %s, the same sample", name)
		}
	}
}

func TestBlobsFingerprint(t *testing.T) {
	base := BlobOptions{Seed: 1, Samples: 10, Features: 3, Classes: 2}
	seen := map[string]BlobOptions{}
	for _, o := range []BlobOptions{
		base,
		{2, 10, 3, 2}, {1, 11, 3, 2}, {1, 10, 4, 2}, {1, 10, 3, 3},
	} {
		b, err := NewBlobs(o)
		if err != nil {
			t.Fatal(err)
		}
		if other, ok := seen[b.Fingerprint()]; ok {
			t.Errorf("%+v and %+v have one fingerprint", o, other)
		}
		seen[b.Fingerprint()] = o
	}
	again, err := NewBlobs(base)
	if err != nil || seen[again.Fingerprint()] != base {
		t.Errorf("drawn again it is other data: %v", err)
	}
}

func TestBlobsErrors(t *testing.T) {
	for _, o := range []BlobOptions{{1, 0, 3, 2}, {1, 10, 0, 2}, {1, 10, 3, 1}} {
		if _, err := NewBlobs(o); err == nil {
			t.Errorf("%+v is accepted", o)
		}
	}
}
