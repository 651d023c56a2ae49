package search

// settle probes the answer again after the search: the largest size, then the size
// to recommend. A confirmation that fails lowers the answer, by a hundredth or so
// the first time, then by twice as much each time. Therefore settle ends after at
// most ⌈log₂ K⌉+3 corrections, each of at most twice Confirm probes.
func (s *searcher) settle() error {
	var confirmed int
	ceiling, drop := s.lo, 1+s.lo/128
	for ; ; drop *= 2 {
		if s.lo != confirmed {
			fits, err := s.confirm(s.lo)
			if err != nil {
				return err
			}
			if !fits {
				s.stepDown(drop)
				continue
			}
			confirmed = s.lo
		}
		best := min(s.recommend(), ceiling)
		if best < s.options.Min || best == s.lo {
			s.agree(best)
			return nil
		}
		fits, err := s.confirm(best)
		switch {
		case err != nil:
			return err
		case !fits:
			s.stepDown(drop)
		case s.recommend() < best: // its peak was higher than the line had predicted
			ceiling = min(best-1, max(best-drop, s.options.Min))
		default:
			s.agree(best)
			return nil
		}
	}
}

// agree ends the search with best as the recommended size, or without a
// recommendation if best is below the range.
func (s *searcher) agree(best int) {
	s.settled = true
	if best >= s.options.Min {
		s.best = best
	}
}

// confirm probes a size as many times as the options ask, or until it fails.
func (s *searcher) confirm(k int) (fits bool, err error) {
	for range s.options.Confirm {
		if fits, err = s.try(k); err != nil || !fits {
			return false, err
		}
	}
	return true, nil
}

// stepDown lowers an answer that has just failed, by at least drop sizes, to what
// the failure showed to be available.
func (s *searcher) stepDown(drop int) {
	lower := s.hi - drop
	if s.room > 0 {
		lower = min(lower, s.curve.within(s.room))
	}
	s.lo = max(s.options.Min, lower)
}

// recommend returns the largest size, at most lo, that is expected to leave the
// headroom, or 0 if there is none. If the capacity is not known, the peak of lo is
// used instead. If peaks are not known, the size itself takes the place of the
// peak. Either way, the result errs on the safe side.
func (s *searcher) recommend() int {
	known, use := s.curve.upTo(s.lo), 1-s.options.Headroom
	if known.top().peak <= 0 {
		return int(use * float64(s.lo))
	}
	return known.within(use * max(s.capacity(), known.top().peak))
}
