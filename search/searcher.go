package search

import (
	"context"
	"errors"
	"fmt"

	"headroom/memory"
)

// searcher is a search under way. lo is the largest size known to fit, and hi the
// smallest known not to fit. While no such size is known, lo or hi lies just outside the
// range.
type searcher struct {
	options Options // Min and Confirm are at least 1
	ctx     context.Context
	probe   func(context.Context, int) (memory.Bytes, error)

	lo, hi   int
	left     int     // probes left before confirming
	curve    curve   // sizes that fitted, with their peaks
	room     float64 // the most memory that can be available according to failures, in bytes; 0 if no failure showed it
	straight bool    // the line through the earlier peaks predicted the newest one, and has not misled the search
	misled   bool    // a size that should fit according to the line has failed, so the line does not decide what fits
	beyond   int     // number of sizes that fitted although they lie beyond the limit that the line predicts
	aims     int     // number of probes at the limit that a confirmed line predicted, made before anything failed
	downs    int     // number of probes that failed below another failure since the bracket was last halved
	best     int     // the size to recommend; 0 if there is none
	settled  bool    // best and lo have been confirmed
	probes   []Probe
}

func (s *searcher) failed() bool { return s.hi <= s.options.Max }

// narrow keeps probing until lo has fitted and hi is near enough, or no probes
// are left.
func (s *searcher) narrow() error {
	for s.left > 0 && !s.done() {
		width, failed := s.hi-s.lo, s.failed()
		fits, err := s.try(s.next())
		if err != nil {
			return err
		}
		s.left--
		switch {
		case !failed || 2*(s.hi-s.lo) <= width:
			s.downs = 0
		case !fits:
			s.downs++
		}
	}
	return nil
}

// done reports whether the search can end. It can if hi is next to lo. It can also end if
// a size has failed, hi is at most a rung above lo, and no line predicts the exact limit.
func (s *searcher) done() bool {
	return s.lo >= s.options.Min && (s.hi-s.lo == 1 || s.failed() && s.hi <= up(s.lo) && !s.straight)
}

// try probes one size and records the outcome. An error ends the search. Running out of
// memory is an error only for the smallest size.
func (s *searcher) try(n int) (fits bool, err error) {
	if err := s.ctx.Err(); err != nil {
		return false, fmt.Errorf("search for the largest micro-batch: %w", err)
	}
	peak, err := s.probe(s.ctx, n)
	var oom *memory.OutOfMemoryError
	switch {
	case err == nil:
		s.fitted(n, peak)
		return true, nil
	case errors.As(err, &oom):
		s.ranOut(n, oom)
		if n == s.options.Min {
			return false, fmt.Errorf("probe micro-batch %d: %w: %w", n, ErrNothingFits, err)
		}
		return false, nil
	case s.ctx.Err() != nil:
		// The probe was cut short. Whatever it reports, the context is the reason.
		err = s.ctx.Err()
	}
	return false, fmt.Errorf("probe micro-batch %d: %w", n, err)
}

func (s *searcher) fitted(n int, peak memory.Bytes) {
	p := point{n, float64(peak)}
	if n > s.lo {
		// One size beyond the end of the line is rounding. More than one is a step in
		// the memory, and no line can say how long a step is.
		if limit, known := s.foreseen(); known && n > limit && len(s.curve) > 2 {
			s.beyond++
		}
		s.straight = s.curve.foretold(p) && !s.misled && s.beyond < 2
		s.lo = n
	}
	s.probes = append(s.probes, Probe{N: n, Peak: peak, Fits: true})
	s.curve = s.curve.with(p)
}

// foreseen returns the largest size that should fit according to the line through the peaks
// measured so far. known is false if there is no such line or the capacity is not known.
func (s *searcher) foreseen() (limit int, known bool) {
	capacity := s.capacity()
	if capacity == 0 || len(s.curve) < 2 || s.curve.top().peak <= 0 {
		return 0, false
	}
	return s.limit(capacity), true
}

func (s *searcher) ranOut(n int, oom *memory.OutOfMemoryError) {
	// A line of two points is not trusted to a single size: rounding alone shifts it by
	// one.
	if limit, known := s.foreseen(); known && n <= limit && len(s.curve) > 2 {
		s.straight, s.misled = false, true
	}
	needed := oom.Needed()
	s.probes = append(s.probes, Probe{N: n, Peak: needed})
	s.hi = min(s.hi, n)
	s.lo = min(s.lo, s.hi-1)
	// More was needed than is available. An allocator that reserves more than it hands
	// out fails in this way below the capacity.
	for _, most := range []memory.Bytes{needed - 1, oom.Stats.Available()} {
		if most > 0 && (s.room == 0 || float64(most) < s.room) {
			s.room = float64(most)
		}
	}
}

// capacity returns the most memory that can be available according to all that is known,
// in bytes. It returns 0 if nothing is known, or if what is known must be wrong because
// a size has fitted that needs more.
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
	r := Result{Max: s.options.Max, Probes: s.probes, Searched: searched, Line: Fit(s.probes)}
	if s.failed() {
		r.Fails = s.hi
	}
	if !s.settled {
		// The search was cut short. Of the sizes that fitted, take the largest, and the
		// largest that should leave the headroom.
		s.lo = s.curve.upTo(s.hi - 1).top().k
		s.best = s.curve.upTo(s.recommend()).top().k
	}
	r.Fits, r.Recommended = s.lo, s.best
	return r
}
