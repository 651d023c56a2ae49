package devicetest

import (
	"fmt"
	"math"

	"headroom/device"
)

// refDropout returns the exact result of a dropout: each element is 0 or a
// float32 product, rounded if the output is BF16.
func refDropout(t device.DType, x []float64, samples []int32, p device.Dropout) []float64 {
	y := make([]float64, len(x))
	for i, v := range x {
		at := i % p.Each
		if p.Draw(samples[i/p.Each], uint32(at/4))[at%4] >= p.Threshold() {
			y[i] = float64(float32(v) * p.Scale())
		}
	}
	return rounded(t, y)
}

func testDropout(r *rig) {
	for _, each := range []int{1, 2, 3, 4, 17, 65, 1024} {
		for _, chance := range []float32{0, 0.1, 0.5, 0.9} {
			p := device.Dropout{P: chance, Seed: r.rng.Uint64(), Step: r.rng.Uint32(), Site: r.rng.Uint32(), Each: each}
			samples := []int32{7, 0, math.MaxInt32, int32(r.rng.IntN(1 << 30)), 7}
			for _, types := range r.pairs() {
				r.dropout(p, types, samples)
			}
		}
	}
}

func (r *rig) dropout(p device.Dropout, types pair, samples []int32) {
	x := r.random(types.in, len(samples)*p.Each)
	want := refDropout(types.out, x, samples, p)
	inPlace := refDropout(types.in, x, samples, p)
	r.verify(fmt.Sprintf("%v,%d,%v", types, p.Each, p.P), func(r *rig) []result {
		numbers, out, same := r.ints(samples), r.output(types.out, len(x)), r.inout(types.in, x)
		r.d.Dropout(out, r.input(types.in, x), numbers, p)
		r.d.Dropout(same, same, numbers, p)
		return []result{exact("y", out, want), exact("y in place of x", same, inPlace)}
	})
}

// testDropoutEdge sets P to the first element's word divided by 2³², so that
// the word equals the threshold: the element must be kept.
func testDropoutEdge(r *rig) {
	p := device.Dropout{Seed: r.rng.Uint64(), Each: 4}
	word := p.Draw(1, 0)[0]
	for ; word%256 != 0; word = p.Draw(1, 0)[0] { // until float32 can hold the word exactly
		p.Step++
	}
	p.P = float32(word) / (1 << 32)
	x := []float64{1, 1, 1, 1}
	r.verify(fmt.Sprintf("P=%v", p.P), func(r *rig) []result {
		out := r.output(r.act, 4)
		r.d.Dropout(out, r.input(r.act, x), r.ints([]int32{1}), p)
		return []result{exact("y", out, refDropout(r.act, x, []int32{1}, p))}
	})
}

// testDropoutCut runs dropout on several samples together and one by one, and
// requires the same bits.
func testDropoutCut(r *rig) {
	const n, each = 6, 37
	p := device.Dropout{P: 0.4, Seed: r.rng.Uint64(), Step: 3, Site: 1, Each: each}
	samples := r.indices(n, 1<<20)
	x := r.random(r.act, n*each)
	from, together, apart := r.input(r.act, x), r.output(r.act, n*each), r.output(r.act, n*each)
	numbers := r.ints(samples)
	r.d.Dropout(together, from, numbers, p)
	for i := n - 1; i >= 0; i-- {
		r.d.Dropout(apart.View(i*each, each), from.View(i*each, each), numbers.View(i, 1), p)
	}
	r.sync()
	if at, same := sameBits(r.read(together), r.read(apart)); !same {
		r.Errorf("element %d depends on which samples it is run with", at)
	}
}

// testDropoutRate checks that the share of elements kept is within five standard
// deviations of its expected value, and that a different seed, step or site gives a
// different draw.
func testDropoutRate(r *rig) {
	const n = 200_000
	base := device.Dropout{P: 0.3, Seed: r.rng.Uint64(), Step: 5, Site: 2, Each: n}
	ones := make([]float64, n)
	for i := range ones {
		ones[i] = 1
	}
	from, numbers, out := r.input(r.act, ones), r.ints([]int32{11}), r.output(r.act, n)
	draw := func(p device.Dropout) []float32 {
		r.d.Dropout(out, from, numbers, p)
		r.sync()
		return r.read(out)
	}
	first := draw(base)
	kept := 0
	for _, v := range first {
		if v != 0 {
			kept++
		}
	}
	keep := 1 - float64(base.P)
	if off := float64(kept) - n*keep; math.Abs(off) > 5*math.Sqrt(n*keep*(1-keep)) {
		r.Errorf("%d of %d kept, expected %.0f", kept, n, n*keep)
	}
	seed, step, site := base, base, base
	seed.Seed += 1 << 32
	step.Step++
	site.Site++
	for name, p := range map[string]device.Dropout{"seed": seed, "step": step, "site": site} {
		if _, same := sameBits(first, draw(p)); same {
			r.Errorf("another %s gives the same draw", name)
		}
	}
}
