package search

import (
	"context"
	"errors"
	"fmt"

	"headroom/memory"
)

// searcher is a search under way. Sizes are numbers of the grid; lo is the
// largest known to fit and hi the smallest known not to, or one outside the
// grid while there is none.
type searcher struct {
	grid
	options Options
	ctx     context.Context
	probe   func(context.Context, int) (memory.Bytes, error)

	lo, hi   int
	left     int     // probes left before confirming
	curve    curve   // what fitted
	room     float64 // the most that can be had, in bytes, as failures showed; 0 if none did
	straight bool    // the line through the earlier peaks told the newest one
	aims     int     // probes made where the line put the limit, before any failed
	failures int     // probes that ran out of memory
	tries    int     // probes made just below a failure that the line did not foresee
	misses   int     // probes in a row that did not halve the bracket
	best     int     // the size to recommend; 0 if none
	settled  bool    // best and lo have been confirmed
	probes   []Probe
}

func (s *searcher) failed() bool { return s.hi <= s.last }

// narrow probes until lo has fitted and hi is its neighbour, or as near as the
// tolerance asks, or the probes are spent.
func (s *searcher) narrow() error {
	for s.left > 0 && (s.lo < s.first || s.hi-s.lo > 1+s.slack) {
		width, failed := s.hi-s.lo, s.failed()
		if _, err := s.try(s.next()); err != nil {
			return err
		}
		s.left--
		s.misses++
		if 2*(s.hi-s.lo) <= width || !failed {
			s.misses = 0
		}
	}
	return nil
}

// try probes one size and takes note of the outcome. An error is the end of the
// search. Running out of memory is one only for the smallest size.
func (s *searcher) try(k int) (fits bool, err error) {
	if err := s.ctx.Err(); err != nil {
		return false, fmt.Errorf("search for the largest micro-batch: %w", err)
	}
	n := k * s.unit
	peak, err := s.probe(s.ctx, n)
	var oom *memory.OutOfMemory
	switch {
	case err == nil:
		s.fitted(k, peak)
		return true, nil
	case errors.As(err, &oom):
		s.ranOut(k, oom)
		if k == s.first {
			return false, fmt.Errorf("probe micro-batch %d: %w: %w", n, ErrNothingFits, err)
		}
		return false, nil
	case s.ctx.Err() != nil:
		// Whatever a probe that was cut short says, this is why.
		err = s.ctx.Err()
	}
	return false, fmt.Errorf("probe micro-batch %d: %w", n, err)
}

func (s *searcher) fitted(k int, peak memory.Bytes) {
	s.probes = append(s.probes, Probe{N: k * s.unit, Peak: peak, Fits: true})
	p := point{k, float64(peak)}
	if k > s.lo {
		s.straight = s.curve.foretold(p)
		s.lo = k
	}
	s.curve = s.curve.with(p)
}

func (s *searcher) ranOut(k int, oom *memory.OutOfMemory) {
	needed := oom.Needed()
	s.probes = append(s.probes, Probe{N: k * s.unit, Peak: needed})
	s.failures++
	s.hi = min(s.hi, k)
	s.lo = min(s.lo, s.hi-1)
	// What was needed is more than can be had. An allocator that reserves more
	// than it hands out fails like this below the capacity.
	for _, most := range []memory.Bytes{needed - 1, oom.Stats.Available()} {
		if most > 0 && (s.room == 0 || float64(most) < s.room) {
			s.room = float64(most)
		}
	}
}

// capacity is the most that can be had, in bytes, by all that is known. It is 0
// if nothing is known, or if what is known is not so because more has fitted.
func (s *searcher) capacity() float64 {
	c := float64(s.options.Capacity)
	if s.room > 0 && (c == 0 || s.room < c) {
		c = s.room
	}
	if c*(1+noise) < s.curve.upTo(s.lo).top().peak {
		return 0
	}
	return c
}

func (s *searcher) result(searched int) Result {
	r := Result{Probes: s.probes, Searched: searched, Line: fit(s.probes)}
	if s.failed() {
		r.Fails = s.hi * s.unit
	}
	if !s.settled {
		// Cut short: of the sizes that fitted, the largest, and the largest
		// that should leave the headroom.
		s.lo = s.curve.upTo(s.hi - 1).top().k
		s.best = s.curve.upTo(s.recommend()).top().k
	}
	r.Fits, r.Recommended = s.lo*s.unit, s.best*s.unit
	return r
}
