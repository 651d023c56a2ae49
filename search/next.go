package search

// These constants say how far a probe may reach.
const (
	// growth is the factor from one size that fitted to the next probe while nothing shows
	// where the limit is.
	growth = 8
	// reach is the largest factor from a size that fitted to the next probe, as long as no
	// third point has confirmed the line. A trial far above the limit may take down the
	// machine, because its inputs are in host memory before the device can refuse. Within
	// this factor the inputs are harmless: the activations of a sample take far more than
	// 16 times the memory of its input.
	reach = 16
	// leap replaces reach if the memory would suffice even if the need grew in proportion
	// to the size. An affine curve cannot grow faster than in proportion.
	leap = 256
	// noise is the largest share by which a peak may lie off the line, whether the size
	// really needs a different amount or the measurement is inaccurate.
	noise = 0.03
	// shy is the share of the capacity at which the search aims with a line that is not
	// confirmed yet: allocators reserve 5 to 8 % more than they hand out.
	shy = 0.92
	// near is a share of the capacity. Once the peaks exceed it, the search follows the
	// line to its end, because the rest is too short to err by much.
	near = 0.7
)

// next returns the size to probe. It lies strictly between lo and hi.
func (s *searcher) next() int {
	if s.lo < s.options.Min {
		return s.options.Min
	}
	return min(max(s.guarded(s.prefer()), s.lo+1), s.hi-1)
}

// guarded limits x to the range between the two sizes that resolved returns. If enough
// probes are left, bisection can then end the search whether x fits or fails. If far too
// few are left, guarded also moves x halfway to the middle between lo and hi.
//
// There are two exceptions. Until something fails, x is never moved up while the line has
// only two points. If a third point has confirmed the line, x is not moved at all, until
// sizes have fitted that lie beyond the limit that the line predicts.
func (s *searcher) guarded(x int) int {
	if s.straight {
		return x
	}
	low, high := s.resolved()
	likely := min(max(x, min(low, high)), max(low, high))
	switch {
	case !s.failed() && len(s.curve) < 3:
		return min(x, likely)
	case (s.failed() || s.beyond > 1) && between(high, low) >= 1<<(s.left-1):
		return (likely + s.middle()) / 2
	}
	return likely
}

// resolved returns two bounds for the next probe. If that probe is at least low and fits,
// or is at most high and fails, the probes left after it are enough to single out one of
// the remaining rungs.
func (s *searcher) resolved() (low, high int) {
	rungs := 1 << (s.left - 1)
	return back(s.hi, rungs, s.lo), ahead(s.lo, rungs, s.hi)
}

// middle returns the size halfway between lo and hi, counted in rungs.
func (s *searcher) middle() int { return ahead(s.lo, between(s.lo, s.hi)/2, s.hi) }

// prefer returns the size to which the measured peaks point.
func (s *searcher) prefer() int {
	limit, known := s.foreseen()
	switch {
	case s.failed() && known:
		return s.inside(limit)
	case s.failed():
		return s.middle()
	case s.capacity() == 0 || s.curve.top().peak <= 0:
		return s.grow()
	}
	return s.approach(s.capacity())
}

// inside returns the size to probe when lo has fitted and hi has not. limit is the
// largest size that fits according to the line. If limit is not below hi, it is too high
// by at least limit−(hi−1). inside then lowers it to twice that distance below hi−1, but
// not below the middle of the bracket.
//
// If the line is confirmed, that limit is probed; once it has fitted, the next probe is
// just above it. A line that is not confirmed may be off by a few sizes, so the probe
// also stays at least a rung away from both ends where there is room. With each further
// failure, the steps down from hi grow, up to half of the bracket.
func (s *searcher) inside(limit int) int {
	middle := s.middle()
	if over := limit - (s.hi - 1); over > 0 {
		limit = max(s.hi-1-2*over, middle)
	}
	if s.straight {
		return limit
	}
	limit = max(limit, min(up(s.lo), middle))
	return min(limit, max(back(s.hi, 1<<max(0, s.downs-1), s.lo), middle))
}

// approach returns the size to probe while nothing has failed. It moves towards the limit
// from below.
func (s *searcher) approach(capacity float64) int {
	top := s.curve.top()
	switch {
	case s.straight:
		return s.aim(s.limit(capacity))
	case len(s.curve) == 1 || top.peak < near*capacity:
		return min(s.sure(shy*capacity), leap*top.k)
	case s.curve.slope() <= 0:
		return s.grow()
	}
	return min(max(s.limit(capacity), s.lo+1), reach*top.k)
}

// aim returns the size to probe while nothing has failed and a confirmed line predicts the
// limit: first that limit, then the size above it. If the line is right, no more probes are
// needed. If it keeps predicting too little, the steps grow.
func (s *searcher) aim(limit int) int {
	step := s.lo + 1
	if s.aims > 1 {
		step = ahead(s.lo, 1<<(2*(s.aims-2)), s.hi)
	}
	s.aims++
	return max(limit, step)
}

// sure returns the largest size that stays within the given number of bytes on every line
// that the peaks and their noise allow. It is at least lo.
func (s *searcher) sure(bytes float64) int {
	return int(min(max(s.curve.reaches(bytes), float64(s.lo)), float64(s.hi)))
}

// grow returns growth times the largest size that fitted. The factor is larger, up to
// reach, where growth would leave too few probes to bisect the rest.
func (s *searcher) grow() int {
	k := s.curve.top().k
	if s.straight {
		return growth * k // the line is confirmed, so the first failure shows the one thing missing: the capacity
	}
	low, _ := s.resolved()
	return max(growth*k, min(low, reach*k))
}

// limit returns the largest size whose peak, according to the line, is at most capacity.
// The curve must have two points.
func (s *searcher) limit(capacity float64) int {
	slope := s.curve.slope()
	if slope <= 0 {
		return 2 * s.options.Max
	}
	return s.lo + int(min(max(0, (capacity-s.curve.top().peak)/slope), 2*float64(s.options.Max)))
}

// resolution sets the distance between rungs, which are the sizes that the search
// distinguishes. The distance is 1/resolution of the size, but at least 1. The search
// ends once the largest size that fits and the smallest that does not are one rung apart,
// unless the line through the measured peaks predicts exactly where the limit lies
// between them.
const resolution = 50

// up returns the next rung above n. Sizes up to 2·resolution have a rung each.
func up(n int) int { return n + max(1, n/resolution) }

// down returns a size from which up leads to n or beyond: the lowest such size, or the
// size above that one.
func down(n int) int { return n - max(1, n/(resolution+1)) }

// ahead returns the size that is the given number of rungs above n, or end if that is
// nearer.
func ahead(n, rungs, end int) int {
	for ; rungs > 0 && n < end; rungs-- {
		n = up(n)
	}
	return min(n, end)
}

// back returns the size that is the given number of rungs below n, or end if that is
// nearer.
func back(n, rungs, end int) int {
	for ; rungs > 0 && n > end; rungs-- {
		n = down(n)
	}
	return max(n, end)
}

// between returns the number of rungs from lo to hi.
func between(lo, hi int) (rungs int) {
	for ; lo < hi; lo = up(lo) {
		rungs++
	}
	return rungs
}
