package main

import (
	"context"
	"math"
	"math/rand/v2"
	"sort"

	"headroom/memory"
)

const (
	seed     = 20
	perKind  = 40
	most     = 512
	capacity = 24 * memory.GiB
)

// curve gives the memory that each size needs. The memory that a size needs, and whether
// the size fits, are the same in every trial; the reported peak may vary.
type curve struct {
	kind  string
	limit int                 // largest size that fits
	need  func(n int) float64 // share of the capacity; 1 still fits
	hands float64             // share of the reserved memory that the allocator hands out
	noise func() float64      // factor on the reported peak
}

func (c curve) probe(_ context.Context, n int) (memory.Bytes, error) {
	need := c.need(n)
	if need > 1 {
		return 0, &memory.OutOfMemoryError{
			Requested: capacity / 100,
			Stats:     memory.Stats{Capacity: capacity, Reserved: capacity, Allocated: bytes(c.hands)},
		}
	}
	return bytes(need * c.hands * c.noise()), nil
}

func bytes(share float64) memory.Bytes { return memory.Bytes(share * float64(capacity)) }

var kinds = []string{
	"affine", "affine, peaks ±3 %", "reserved 5–8 % above", "convex",
	"steps of a sixteenth", "segments of 2–20 MiB", "powers of two",
}

// draw returns perKind curves of each kind. The limits are log-uniform, from 2
// to most. The memory that does not grow with the size takes up to half of the
// capacity.
func draw() []curve {
	rng := rand.New(rand.NewPCG(seed, seed))
	var curves []curve
	for _, kind := range kinds {
		for range perKind {
			curves = append(curves, drawOne(rng, kind))
		}
	}
	return curves
}

func drawOne(rng *rand.Rand, kind string) curve {
	limit := int(2 * math.Pow(most/2, rng.Float64()))
	base, bend := rng.Float64()/2, rng.Float64()
	c := curve{kind: kind, limit: limit, hands: 1, noise: func() float64 { return 1 }}
	grow := func(x float64) float64 { return x }
	switch kind {
	case kinds[1]:
		c.noise = func() float64 { return 0.97 + 0.06*rng.Float64() }
	case kinds[2]:
		c.hands = 1 / (1.05 + 0.03*bend)
	case kinds[3]:
		grow = func(x float64) float64 { return math.Pow(x, 1+bend/2) }
	case kinds[4]:
		// Each step is a sixteenth of the limit; the last one ends at the limit.
		grow = func(x float64) float64 { return math.Ceil(16*x*(float64(limit)+0.5)/float64(limit)-1e-9) / 16.5 }
	case kinds[5], kinds[6]:
		c.hands = 1 / (1 + 0.08*bend)
		grow = tensors(rng, kind, base)
	}
	c.need = func(n int) float64 { return base + (1-base)*grow(float64(n)/(float64(limit)+0.5)) }
	if kind == kinds[5] || kind == kinds[6] {
		c.limit = sort.Search(most+1, func(n int) bool { return c.need(n) > 1 }) - 1
		if c.limit < 2 || c.need(c.limit+1) <= 1 {
			return drawOne(rng, kind) // no size is the largest that fits, or it is too small: draw again
		}
	}
	return c
}

// tensors returns the memory of one to sixteen tensors as a function of x. The
// tensors have random sizes, in proportion to x, and each is rounded up: to
// whole segments of 2 to 20 MiB, or to a power of two.
func tensors(rng *rand.Rand, kind string, base float64) func(x float64) float64 {
	sizes, sum := make([]float64, 1+rng.IntN(16)), 0.0
	for i := range sizes {
		sizes[i] = 0.1 + rng.Float64()
		sum += sizes[i]
	}
	segment := float64(memory.MiB) * (2 + 18*rng.Float64()) / float64(capacity) / (1 - base)
	return func(x float64) (total float64) {
		for _, size := range sizes {
			if each := x * size / sum; kind == kinds[6] {
				total += math.Exp2(math.Ceil(math.Log2(each)))
			} else {
				total += segment * math.Ceil(each/segment)
			}
		}
		return total
	}
}
