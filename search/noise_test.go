package search_test

import (
	"context"
	"math"
	"testing"

	"pgregory.net/rapid"

	"headroom/search"
)

const noise = 0.03

// tolerance is the least one for which doc.go promises five probes and one
// failure with noise: a sixteenth of the limit over the share that grows.
func tolerance(base float64, limit int) int {
	return int(math.Ceil(float64(limit) / 16 / (1 - base)))
}

// measured has peaks off the line; what fits is not touched.
func measured(base float64, limit int, deviation func() float64) machine {
	m := affine(base, limit)
	m.peak = func(n int) float64 { return m.need(n) * (1 + deviation()) }
	return m
}

// deviating has needs off the line, each size its own. The smallest fits.
func deviating(base float64, limit int, deviation func() float64) machine {
	line, needs := affine(base, limit), map[int]float64{}
	return machine{need: func(n int) float64 {
		if _, known := needs[n]; !known {
			needs[n] = line.need(n) * (1 + deviation())
		}
		if n == 1 {
			return min(needs[n], 1)
		}
		return needs[n]
	}}
}

var noisy = map[string]func(base float64, limit int, deviation func() float64) machine{
	"measured": measured, "deviating": deviating,
}

// checkNoisy runs a search and checks all that is promised with noise.
func checkNoisy(t interface {
	Helper()
	Fatalf(string, ...any)
}, kind string, o search.Options, m machine, base float64, limit int) {
	t.Helper()
	r, err := search.Largest(context.Background(), o, m.probe)
	if err != nil {
		t.Fatalf("%v", err)
	}
	checkEnded(t, o, r)
	describe := func(wrong string) {
		t.Helper()
		t.Fatalf("%s: %s, base %.3f, limit %d, tolerance %d: %s", wrong, kind, base, limit, o.Tolerance, trajectory(r))
	}
	if r.Searched > 5 || failures(r.Probes[:r.Searched]) > 1 {
		describe("more than five probes or one failure")
	}
	if m.need(r.Fits) > 1 || r.Fits != o.Max && r.Fails-r.Fits > 1+o.Tolerance {
		describe("not the largest within the tolerance")
	}
	first := float64(min(limit, o.Max))
	if kind == "deviating" { // the first size that may fail is that far below
		first -= 1 + noise/(1-base)*first
	}
	if float64(r.Fits) < first-float64(o.Tolerance) {
		describe("less than the tolerance allows")
	}
}

func TestNoiseTakesFiveProbes(t *testing.T) {
	for kind, with := range noisy {
		t.Run(kind, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				base := rapid.Float64Range(0, 0.9).Draw(t, "base")
				limit := logSize(t, 65536, "limit")
				least := tolerance(base, limit)
				o := search.Options{Max: 65536, Capacity: capacity, Headroom: 0.08,
					Tolerance: rapid.IntRange(least, max(least, limit/8)).Draw(t, "tolerance")}
				m := with(base, limit, func() float64 { return rapid.Float64Range(-noise, noise).Draw(t, "deviation") })
				checkNoisy(t, kind, o, m, base, limit)
			})
		})
	}
}

// The noise that can mislead the most is at its ends: every way in which the
// five sizes of a search may lie at one or the other.
func TestWorstNoiseTakesFiveProbes(t *testing.T) {
	step := 1.2
	if testing.Short() {
		step = 1.5
	}
	for kind, with := range noisy {
		for base := 0.0; base <= 0.9; base += 0.05 {
			for limit := 1; limit <= 65536; limit = max(limit+1, int(step*float64(limit))) {
				for signs := range 1 << 5 {
					left := signs
					m := with(base, limit, func() float64 {
						sign := left & 1
						left >>= 1
						return noise * float64(2*sign-1)
					})
					o := search.Options{Max: 65536, Capacity: capacity, Tolerance: tolerance(base, limit)}
					checkNoisy(t, kind, o, m, base, limit)
				}
			}
		}
	}
}
