package search

import "math"

// How far a probe may reach.
const (
	// growth is the factor from one size that fitted to the next while nothing
	// tells where the limit is.
	growth = 4
	// reach is the largest factor from a size that fitted to the next probe
	// where the line has not been confirmed by a third point. A trial far above
	// the limit may take down the machine: its inputs are in host memory before
	// the device can refuse. Within this factor they are harmless, since the
	// activations of a sample take well more than 16 times its input.
	reach = 16
	// leap is that factor where memory in proportion to the size, which is the
	// most that an affine curve can need, leaves room.
	leap = 256
	// noise is how far measured peaks may lie off the line.
	noise = 0.03
	// shy is the share of the capacity aimed at by a line that is not confirmed
	// yet: allocators reserve 5 to 8 % more than they hand out.
	shy = 0.92
	// near is the share of the capacity from which on the line is followed to
	// its end: what is left is too short to err by much.
	near = 0.7
)

// next chooses the size to probe. It lies strictly between lo and hi.
func (s *searcher) next() int {
	if s.lo < s.first {
		return s.first
	}
	x := s.prefer()
	if !s.straight {
		x = s.guarded(x)
	}
	return min(max(x, s.lo+1), s.hi-1)
}

// guarded moves x so that, whatever its outcome, the probes left suffice to
// bisect the rest; or else so that the rest is halved.
func (s *searcher) guarded(x int) int {
	half := s.half()
	switch {
	case !s.failed():
		return min(x, max(s.lo+half, s.middle()))
	case s.hi-s.lo <= 2*half:
		return min(max(x, s.hi-half), s.lo+half)
	}
	return s.middle()
}

// half is the widest bracket that the probes left after the next one resolve.
func (s *searcher) half() int {
	width := s.hi - s.lo
	half := 1 + s.slack
	for i := 1; i < s.left && half < width; i++ {
		half *= 2
	}
	return half
}

func (s *searcher) middle() int { return s.lo + (s.hi-s.lo)/2 }

// prefer is the size that the measured peaks point to.
func (s *searcher) prefer() int {
	capacity, top := s.capacity(), s.curve.top()
	blind := capacity == 0 || top.peak <= 0
	switch {
	case s.failed():
		if blind || len(s.curve) < 2 {
			return s.middle()
		}
		return s.inside(capacity)
	case blind:
		return s.grow()
	case len(s.curve) == 1:
		affordable := float64(top.k) * capacity / top.peak
		return min(top.k+s.clip(0.9*(affordable-float64(top.k))), leap*top.k)
	}
	return s.approach(capacity)
}

// inside interpolates between a size that fitted and one that did not.
func (s *searcher) inside(capacity float64) int {
	limit := s.limit(capacity)
	if limit >= s.hi {
		return s.below(limit)
	}
	return s.toward(limit)
}

// below is the probe to make when the line puts the limit at hi or above and so
// cannot explain the failure there. Where hi was aimed at after a failure had
// told what is there, it is worth two tries that this errs by little: what an
// allocator needed last is a little more than it has.
func (s *searcher) below(limit int) int {
	little := float64(1 + s.slack + 2*(limit-s.hi))
	if s.tries > 0 {
		little = max(little, noise*float64(s.hi))
	}
	if s.failures < 2 || s.tries > 1 || little > 2*noise*float64(s.hi) {
		return s.middle()
	}
	s.tries++
	return max(s.hi-s.clip(little), s.middle())
}

// approach comes nearer to the limit from below while nothing has failed.
func (s *searcher) approach(capacity float64) int {
	top := s.curve.top()
	slope, span := s.curve.slope()
	switch {
	case !s.straight && top.peak < near*capacity:
		// The steepest line that noise leaves possible.
		steepest := max(slope, 0) + 2*noise*top.peak/float64(span)
		return min(s.lo+s.clip((shy*capacity-top.peak)/steepest), leap*top.k)
	case slope <= 0:
		return s.grow()
	case s.straight:
		return s.toward(s.limit(capacity))
	}
	return min(s.toward(s.limit(capacity)), reach*top.k)
}

// grow multiplies the size; by more where less would leave too few probes to
// bisect the rest.
func (s *searcher) grow() int {
	k, half := s.curve.top().k, s.half()
	if s.straight || s.hi-s.lo > 2*half {
		return growth * k
	}
	return max(growth*k, min(s.hi-half, reach*k))
}

// limit is the largest size whose peak by the line is at most capacity.
func (s *searcher) limit(capacity float64) int {
	slope, _ := s.curve.slope()
	if slope <= 0 {
		return 2 * s.last
	}
	return s.lo + int(min(max(0, (capacity-s.curve.top().peak)/slope), 2*float64(s.last)))
}

// toward is the probe to make when the line puts the limit at that size: the
// limit itself, or what should just fail once lo is as near to it as the
// tolerance asks. A line that is right needs this twice; where it goes on
// promising too little the steps grow.
func (s *searcher) toward(limit int) int {
	step := 1 + s.slack
	if s.failed() {
		step = min(step<<max(0, s.misses-1), max(s.middle()-s.lo, step))
	} else {
		if s.aims > 2 {
			far := float64(s.lo) / 64 * math.Pow(growth, float64(s.aims-3))
			step = max(step, s.clip(far))
		}
		s.aims++
	}
	switch short := limit - s.lo; {
	case short > 2*step:
		return limit - s.slack/2
	case s.slack == 0 && short > step:
		return limit
	}
	return s.lo + step
}

// clip makes a distance from lo whole, and no longer than the bracket.
func (s *searcher) clip(distance float64) int {
	return int(math.Min(math.Max(distance, 0), float64(s.hi-s.lo)))
}
