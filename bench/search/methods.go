package main

import (
	"context"
	"errors"
	"fmt"

	"headroom/memory"
	"headroom/search"
)

// trial reports whether a size fits.
type trial func(n int) (bool, error)

// method finds the largest size that fits, up to most.
type method struct {
	name string
	find func(c curve) (found int, probes []search.Probe, err error)
}

var methods = []method{
	{"search.Largest", func(c curve) (int, []search.Probe, error) { return largest(c, capacity) }},
	{"search.Largest, capacity not known", func(c curve) (int, []search.Probe, error) { return largest(c, 0) }},
	{"doubling, then bisection", func(c curve) (int, []search.Probe, error) { return counted(c, doubling) }},
	{"from the top, ×0.9", func(c curve) (int, []search.Probe, error) { return counted(c, descent) }},
}

func largest(c curve, known memory.Bytes) (int, []search.Probe, error) {
	r, err := search.Largest(context.Background(), search.Options{Max: most, Capacity: known}, c.probe)
	return r.Fits, r.Probes[:r.Searched], err
}

// counted calls find, a method that uses no peaks, and returns its answer and
// its probes.
func counted(c curve, find func(trial) (int, error)) (int, []search.Probe, error) {
	var probes []search.Probe
	found, err := find(func(n int) (bool, error) {
		_, err := c.probe(context.Background(), n)
		var oom *memory.OutOfMemoryError
		if err != nil && !errors.As(err, &oom) {
			return false, err
		}
		probes = append(probes, search.Probe{N: n, Fits: err == nil})
		return err == nil, nil
	})
	return found, probes, err
}

// doubling doubles from 1 until a size fails or most is reached, then bisects.
func doubling(fits trial) (int, error) {
	lo, hi := 0, most+1
	for n := 1; lo < most; n = min(2*n, most) {
		ok, err := fits(n)
		if err != nil {
			return 0, err
		}
		if !ok {
			hi = n
			break
		}
		lo = n
	}
	for hi-lo > 1 {
		n := lo + (hi-lo)/2
		ok, err := fits(n)
		switch {
		case err != nil:
			return 0, err
		case ok:
			lo = n
		default:
			hi = n
		}
	}
	return lo, nil
}

// descent starts at the largest allowed size, most, and reduces the size by a
// tenth until it fits.
func descent(fits trial) (int, error) {
	for n := most; n > 0; n = n * 9 / 10 {
		if ok, err := fits(n); ok || err != nil {
			return n, err
		}
	}
	return 0, nil
}

// row holds the results of one method on the curves of one kind.
type row struct {
	Curve       string  `json:"curve"`
	Method      string  `json:"method"`
	Probes      float64 `json:"probes_mean"`
	Worst       int     `json:"probes_worst"`
	Failed      float64 `json:"failed_mean"`
	WorstFailed int     `json:"failed_worst"`
	Exact       float64 `json:"exact"`      // share of the curves
	Short       float64 `json:"short_mean"` // by how much the found size misses the limit, as a share of the limit
	WorstShort  float64 `json:"short_worst"`
}

// compare returns several rows for each method: one for all curves together,
// and one for the curves of each kind.
func compare(curves []curve) ([]row, error) {
	var rows []row
	for _, kind := range append([]string{"all"}, kinds...) {
		for _, m := range methods {
			r := row{Curve: kind, Method: m.name}
			count := 0.0
			for _, c := range curves {
				if kind != "all" && kind != c.kind {
					continue
				}
				found, probes, err := m.find(c)
				if err != nil {
					return nil, fmt.Errorf("%s on %s, limit %d: %w", m.name, c.kind, c.limit, err)
				}
				r.add(c.limit, found, probes)
				count++
			}
			r.Probes, r.Failed, r.Exact, r.Short = r.Probes/count, r.Failed/count, r.Exact/count, r.Short/count
			rows = append(rows, r)
		}
	}
	return rows, nil
}

// add adds the outcome of one search. The means hold sums until compare divides
// them by the number of searches.
func (r *row) add(limit, found int, probes []search.Probe) {
	failed := 0
	for _, p := range probes {
		if !p.Fits {
			failed++
		}
	}
	r.Probes += float64(len(probes))
	r.Failed += float64(failed)
	r.Worst, r.WorstFailed = max(r.Worst, len(probes)), max(r.WorstFailed, failed)
	if found == limit {
		r.Exact++
	}
	short := float64(limit-found) / float64(limit)
	r.Short += short
	r.WorstShort = max(r.WorstShort, short)
}
