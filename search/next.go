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
	// noise is the share by which a peak may lie off the line, whether the size
	// needs that or was measured so.
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
		return s.start()
	}
	x := s.prefer()
	if !s.straight {
		x = s.guarded(x)
	}
	return min(max(x, s.lo+1), s.hi-1)
}

// start is the first size, or the one whose failure leaves the first one within
// the tolerance: the further up, the more its peak tells.
func (s *searcher) start() int {
	if s.failed() {
		return s.first
	}
	return min(s.first+s.slack, s.last)
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
	capacity, blind := s.capacity(), s.curve.top().peak <= 0
	switch {
	case capacity == 0 || blind:
		if s.failed() {
			return s.middle()
		}
		return s.grow()
	case s.failed():
		return s.inside(capacity)
	}
	return s.approach(capacity)
}

// inside interpolates between a size that fitted and one that did not. After
// the first failure it closes in on what is sure to fit, if that ends the
// search; if that fails too, the curve is no line.
func (s *searcher) inside(capacity float64) int {
	if last := s.hi - 1 - s.slack; s.slack > 0 && s.failures == 1 && s.sure(capacity/(1+noise)) >= last {
		return last
	}
	if len(s.curve) < 2 {
		return s.middle()
	}
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

// approach comes nearer to the limit from below while nothing has failed. With
// a tolerance it goes to the largest size whose failure would leave a size that
// is sure to fit within the tolerance. No larger step is safe from a second
// failure, and none that is smaller tells more.
func (s *searcher) approach(capacity float64) int {
	top := s.curve.top()
	far := len(s.curve) == 1 || top.peak < near*capacity
	switch next := s.sure(capacity/(1+noise)) + 1 + s.slack; {
	case s.straight:
		return s.toward(s.limit(capacity))
	case far && s.slack > 0:
		return min(next, leap*top.k)
	case far:
		return min(s.sure(shy*capacity), leap*top.k)
	case s.slack > 0:
		return s.toward(next)
	case s.curve.slope() <= 0:
		return s.grow()
	}
	return min(s.toward(s.limit(capacity)), reach*top.k)
}

// sure is the largest size that stays within so many bytes on every line that
// the peaks and their noise leave possible; at least lo.
func (s *searcher) sure(bytes float64) int {
	return s.lo + s.clip(s.curve.reaches(bytes)-float64(s.lo))
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
	slope := s.curve.slope()
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
	if limit-s.lo > step {
		return limit
	}
	return s.lo + step
}

// clip makes a distance from lo whole, and no longer than the bracket.
func (s *searcher) clip(distance float64) int {
	return int(math.Min(math.Max(distance, 0), float64(s.hi-s.lo)))
}
