package recovery

import (
	"fmt"

	"headroom/memory"
	"headroom/search"
)

// afterSearch turns the result of a search into a plan. If no size leaves the
// headroom, it takes the smallest size allowed, which leaves the most memory
// unused, and says how much that is.
func afterSearch(p Policy, h History, s Searched) Decision {
	r := s.Result
	wanted, short := r.Recommended, r.Recommended == 0
	if short {
		wanted = min(r.Fits, p.Least())
	}
	plan := h.Plan
	plan.Micro = plan.within(wanted, p.Least())
	if r.Fits == 0 || plan.Micro == 0 || plan.Micro > r.Fits {
		return nothingFits(p, h, s)
	}
	room := fmt.Sprintf("in %v, %v; sizes up to %d leave at least %s of the memory unused", s.Stats.Available(), r, wanted, percent(p.Headroom))
	if short {
		room = fmt.Sprintf("in %v, %v; no size leaves at least %s of the memory unused, and %d, the smallest allowed, leaves the most",
			s.Stats.Available(), r, percent(p.Headroom), wanted)
		if peak := peakOf(r, wanted); peak > 0 {
			room += ": " + percent(1-float64(peak)/float64(s.Stats.Available()))
		}
	}
	if h.search == nil {
		return Decision{Remedy: Continue, Plan: plan, Reason: fmt.Sprintf("%s: %s", plan, room)}
	}
	return Decision{Remedy: Shrink, Plan: plan, Verdict: h.search, Reason: changeReason(h.Running(), plan, room)}
}

// peakOf returns the largest peak measured for a size, or 0 if the size never
// fitted.
func peakOf(r search.Result, size int) (peak memory.Bytes) {
	for _, probe := range r.Probes {
		if probe.N == size && probe.Fits {
			peak = max(peak, probe.Peak)
		}
	}
	return peak
}

// percent returns a share as a percentage with three significant digits.
func percent(share float64) string {
	return fmt.Sprintf("%.3g %%", 100*share)
}

// nothingFits decides what to do after a search in which no size fitted. There is
// no smaller plan, so only the last rung of the ladder is left.
func nothingFits(p Policy, h History, s Searched) Decision {
	failed := memory.Evidence{Failure: memory.OutOfMemoryError{Stats: s.Stats}}
	if h.search != nil && h.search.Cause == memory.Foreign {
		return ladder{p, h, failed, *h.search}.last()
	}
	need := memory.Bytes(0)
	if n := len(s.Result.Probes); n > 0 {
		need = s.Result.Probes[n-1].Peak
	}
	verdict := memory.Verdict{Cause: memory.Model, Why: fmt.Sprintf("micro-batch %d, the smallest allowed, needs at least %s", p.Least(), memory.Short(need, s.Stats.Available()))}
	return ladder{p, h, failed, verdict}.last()
}
