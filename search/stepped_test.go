package search_test

import (
	"context"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"headroom/memory"
	"headroom/search"
)

// steps are ways in which allocators round. Each function takes x, the exact size of the
// part of the memory that grows, and returns how much memory the allocator takes for it.
// x is 0 for nothing and about 1 at the limit. phase, a share of a step's width, says
// where steps begin; wide, in [0, 1], says how wide they are.
var steps = map[string]func(x, wide, phase float64) float64{
	// One block for everything, rounded up to a multiple of a step. The step is 1/4096 to
	// 1/16 of the capacity.
	"multiples": func(x, wide, phase float64) float64 {
		step := math.Exp2(-12 + 8*wide)
		return step * math.Ceil(x/step+phase)
	},
	// One to eight tensors of different sizes, each rounded up to a segment.
	"segments": func(x, wide, phase float64) (sum float64) {
		count := 1 + int(8*phase)
		for i := range count {
			step := math.Exp2(-12+8*wide) / float64(count)
			sum += step * math.Ceil(x*2*float64(i+1)/float64(count*(count+1))/step)
		}
		return sum
	},
	// Four to sixteen tensors, each rounded up to a power of two.
	"powers of two": func(x, wide, phase float64) (sum float64) {
		count := 16 - int(12*wide)
		for i := range count {
			each := x / float64(count) * math.Exp2((float64(i)+phase)/float64(count)-1)
			sum += math.Exp2(math.Ceil(math.Log2(each)))
		}
		return sum
	},
	// One block for everything, rounded up to a multiple of an eighth, a quarter, a half
	// or the whole of a power of two.
	"parts of powers of two": func(x, wide, phase float64) float64 {
		parts := math.Exp2(math.Floor(4 * (1 - wide)))
		power := math.Exp2(math.Floor(math.Log2(x)+phase)) / parts
		return power * math.Ceil(x/power)
	},
}

// stepped draws a machine whose memory rises in steps of the given kind, using the
// numbers in [0, 1) that unit returns. Its allocator reserves up to 8 % more than it
// hands out. In half of the draws, its peaks show the steps; in the others, only the
// reserved memory has steps, and the peaks do not.
func stepped(kind string, limit int, unit func(name string) float64) machine {
	round := steps[kind]
	wide, phase := unit("wide"), unit("phase")
	base, over := 0.9*unit("base"), 1+0.08*unit("reserved above")
	handed := func(n int) float64 { return base + (1-base)*round(float64(n)/float64(limit), wide, phase) }
	m := machine{need: func(n int) float64 { return handed(n) * over }, peak: handed, idle: 1 - 1/over}
	if unit("smooth peaks") < 0.5 {
		m.peak = func(n int) float64 { return min(handed(n), base+(1-base)*float64(n)/float64(limit)) }
	}
	return m
}

// TestStepped checks that the search ends within its bound and near the largest size that
// fits, whatever the steps in which memory rises. TestSteppedMisses checks how often it
// misses that size by more than 2 %. The draws here favour corner cases, such as a step
// that fills the capacity to the byte.
func TestStepped(t *testing.T) {
	kinds := slices.Sorted(maps.Keys(steps))
	rapid.Check(t, func(t *rapid.T) {
		o := search.Options{Max: 1000 + logSize(t, 65536-1000, "max"), Capacity: capacity}
		m := stepped(rapid.SampledFrom(kinds).Draw(t, "steps"), logSize(t, o.Max, "limit"), func(name string) float64 {
			return rapid.Float64Range(0, 1).Draw(t, name)
		})
		want := m.largest(o.Max)
		if want == 0 {
			t.Skip("nothing fits")
		}
		r, err := search.Largest(context.Background(), o, m.probe)
		if err != nil {
			t.Fatal(err)
		}
		checkEnded(t, o, r)
		if r.Fits > want || float64(r.Fits) < 0.85*float64(want) {
			t.Fatalf("fits %d, want %d of %d: %s", r.Fits, want, o.Max, trajectory(r))
		}
	})
}

// TestStepThatFillsTheCapacity checks steps that fill the capacity to the byte. Every
// peak near the limit suggests that no larger size fits, but the search must not move up
// one size at a time from there.
func TestStepThatFillsTheCapacity(t *testing.T) {
	for _, c := range []struct {
		kind   string
		limit  int
		base   float64
		want   int
		within float64
	}{
		{"powers of two", 1001, 1, 1001, 0.02},
		{"parts of powers of two", 1001, 0.5, 1000, 0.03},
		{"parts of powers of two", 206, 0.56, 205, 0.05},
	} {
		of := map[string]float64{"wide": 1, "phase": 1, "base": c.base, "reserved above": 0, "smooth peaks": 1}
		o := search.Options{Max: 1001, Capacity: capacity}
		m := stepped(c.kind, c.limit, func(name string) float64 { return of[name] })
		r := mustSearch(t, o, m)
		if want := m.largest(o.Max); want != c.want || float64(r.Fits) < (1-c.within)*float64(want) {
			t.Errorf("%s: fits %d, want %d: %s", c.kind, r.Fits, want, trajectory(r))
		}
	}
}

// TestSteppedMisses checks the same as TestStepped for sizes that are drawn evenly. It
// also checks how often the search misses the largest size that fits by more than 2 % if
// there are few sizes or the capacity is not known.
func TestSteppedMisses(t *testing.T) {
	const runs = 6000
	for _, kind := range slices.Sorted(maps.Keys(steps)) {
		t.Run(kind, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(7, 7))
			var missed, total, probes int
			var worst, sum float64
			for i := range runs {
				o := search.Options{Max: int(math.Pow(65536, rng.Float64())), Capacity: capacity * memory.Bytes(i%2)}
				m := stepped(kind, int(math.Pow(float64(o.Max), rng.Float64())), func(string) float64 { return rng.Float64() })
				want := m.largest(o.Max)
				if want == 0 {
					continue
				}
				r := mustSearch(t, o, m)
				total, probes = total+1, probes+r.Searched
				by := 1 - float64(r.Fits)/float64(want)
				sum += by
				if short(r.Fits, want) {
					missed, worst = missed+1, max(worst, by)
					if o.Max > 256 && o.Capacity > 0 {
						t.Errorf("%d of %d: %s", want, o.Max, trajectory(r))
					}
				}
			}
			t.Logf("%d of %d short, by %.1f %% at most; %.2f %% and %.1f probes on average",
				missed, total, 100*worst, 100*sum/float64(total), float64(probes)/float64(total))
			if float64(missed) > 0.001*float64(total) || worst > 0.05 {
				t.Errorf("%d of %d short, by %.3f at most", missed, total, worst)
			}
		})
	}
}
