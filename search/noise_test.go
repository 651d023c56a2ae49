package search_test

import (
	"context"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"headroom/search"
)

const noise = 0.03

// measured returns a machine whose measured peaks lie off the line. The deviation does not
// affect which sizes fit.
func measured(base float64, limit int, deviation func() float64) machine {
	m := affine(base, limit)
	m.peak = func(n int) float64 { return m.need(n) * (1 + deviation()) }
	return m
}

// deviating returns a machine whose needs lie off the line, by a different share for each
// size. The smallest size always fits.
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

// checkNoisy checks everything that the package promises of a search with noise.
func checkNoisy(t interface {
	Helper()
	Fatalf(string, ...any)
}, kind string, o search.Options, m machine, base float64, limit int) search.Result {
	t.Helper()
	r, err := search.Largest(context.Background(), o, m.probe)
	if err != nil {
		t.Fatalf("%v", err)
	}
	checkEnded(t, o, r)
	lowest := min(limit, o.Max)
	if kind == "deviating" { // noise may make sizes fail down to this far below the limit
		lowest -= 1 + int(noise/(1-base)*float64(limit))
	}
	if m.need(r.Fits) > 1 || short(r.Fits, lowest) {
		t.Fatalf("%s, base %.3f, limit %d: %s", kind, base, limit, trajectory(r))
	}
	return r
}

// TestNoise checks that noise costs probes but does not make the answer worse.
func TestNoise(t *testing.T) {
	for kind, with := range noisy {
		t.Run(kind, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				base := rapid.Float64Range(0, 0.9).Draw(t, "base")
				limit := logSize(t, 65536, "limit")
				o := search.Options{Max: 65536, Capacity: capacity, Headroom: 0.08}
				m := with(base, limit, func() float64 { return rapid.Float64Range(-noise, noise).Draw(t, "deviation") })
				checkNoisy(t, kind, o, m, base, limit)
			})
		})
	}
}

// TestNoisySearchIsShort checks that a search stays short, on average, if every measurement is
// off by the largest possible error, up or down. Such errors mislead the search most.
func TestNoisySearchIsShort(t *testing.T) {
	for _, kind := range slices.Sorted(maps.Keys(noisy)) {
		const runs = 4000
		rng := rand.New(rand.NewPCG(7, 7))
		probes := 0
		for range runs {
			base, limit := 0.75*rng.Float64(), int(math.Pow(65536, rng.Float64()))
			m := noisy[kind](base, limit, func() float64 { return noise * float64(2*rng.IntN(2)-1) })
			r := checkNoisy(t, kind, search.Options{Max: 65536, Capacity: capacity}, m, base, limit)
			probes += r.Searched
		}
		mean := float64(probes) / runs
		t.Logf("%s: %.1f probes on average", kind, mean)
		if mean > 8.5 {
			t.Errorf("%s: %.1f probes on average", kind, mean)
		}
	}
}
