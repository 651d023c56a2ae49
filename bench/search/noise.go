package main

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"

	"headroom/search"
)

const (
	perShare  = 2000  // searches for each share
	widest    = 65536 // sizes
	deviation = 0.03
)

// share holds the results of searches on affine curves with noise. Five probes were enough for
// a search if it used at most five and at most one of them failed. Half of the curves have
// noise in the reported peak, the other half in the memory that a size needs. In each half, the
// noise of every second curve is uniform. On the other curves, it takes only its two extreme
// values.
type share struct {
	From   float64 `json:"base_from"` // memory that does not grow with the size, as a share of the capacity
	To     float64 `json:"base_to"`
	Enough float64 `json:"enough"` // share of the searches for which five probes were enough
	Probes float64 `json:"probes_mean"`
	Worst  int     `json:"probes_worst"`
}

func shares() ([]share, error) {
	var all []share
	for from := 0.0; from < 0.75; from += 0.25 {
		s := share{From: from, To: from + 0.25}
		if err := s.measure(); err != nil {
			return nil, err
		}
		all = append(all, s)
	}
	return all, nil
}

// measure runs perShare searches and fills in their results. The limits of the curves are
// log-uniform, from 1 to widest.
func (s *share) measure() error {
	rng := rand.New(rand.NewPCG(seed, seed))
	for i := range perShare {
		limit := int(math.Pow(widest, rng.Float64()))
		c := noisy(rng, s.From+(s.To-s.From)*rng.Float64(), limit, i%2 == 0, i%4 < 2)
		r, err := search.Largest(context.Background(), search.Options{Max: widest, Capacity: capacity}, c.probe)
		if err != nil {
			return fmt.Errorf("noise, base up to %.2f, limit %d: %w", s.To, limit, err)
		}
		failed := 0
		for _, p := range r.Probes[:r.Searched] {
			if !p.Fits {
				failed++
			}
		}
		if r.Searched <= 5 && failed <= 1 {
			s.Enough += 1. / perShare
		}
		s.Probes += float64(r.Searched) / perShare
		s.Worst = max(s.Worst, r.Searched)
	}
	return nil
}

// noisy returns an affine curve with noise in its needs if inNeed is set, else
// in its peaks. If atEnds is set, the noise takes only its two extreme values.
func noisy(rng *rand.Rand, base float64, limit int, inNeed, atEnds bool) curve {
	noise := func() float64 {
		x := 2*rng.Float64() - 1
		if atEnds {
			x = math.Copysign(1, x)
		}
		return 1 + deviation*x
	}
	line := func(n int) float64 { return base + (1-base)*float64(n)/(float64(limit)+0.5) }
	if !inNeed {
		return curve{need: line, hands: 1, noise: noise}
	}
	needs := map[int]float64{1: min(1, line(1)*noise())}
	return curve{hands: 1, noise: func() float64 { return 1 }, need: func(n int) float64 {
		if _, known := needs[n]; !known {
			needs[n] = line(n) * noise()
		}
		return needs[n]
	}}
}

func (s share) markdown() string {
	return fmt.Sprintf("| %.0f–%.0f %% | %.1f %% | %.1f | %d |\n", 100*s.From, 100*s.To, 100*s.Enough, s.Probes, s.Worst)
}
