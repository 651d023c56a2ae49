package recovery

import (
	"fmt"
	"math"

	"headroom/memory"
	"headroom/search"
)

// roomMargin is the factor by which the available memory must have risen since the
// plan was chosen before growing back is worth a try. Smaller changes are noise.
const roomMargin = 1.02

// grow decides after a finished step whether a larger micro-batch is worth a try. It
// never exceeds what was asked for. It waits for GrowAfter quiet steps, and for twice as
// many after each try that failed. It also needs a reason: either more memory is
// available than when the current plan was chosen, or that plan was chosen for a cause
// that passes by itself. If nothing is known about the memory, there is no reason.
func grow(p Policy, h History, s Progress) Decision {
	h = h.finished(s)
	stay := Decision{Remedy: Continue, Plan: h.Plan}
	if p.GrowAfter <= 0 || h.quiet < p.GrowAfter<<h.patience || h.Plan.Micro >= h.asked || s.Memory.Capacity <= 0 {
		return stay
	}
	available := s.Memory.Available()
	if float64(available) < roomMargin*float64(h.room) {
		return stay
	}
	plan := h.Plan.WithMicro(min(h.asked, h.larger(p, available)))
	if plan.Micro <= h.Plan.Micro || plan.Accumulation() >= h.Plan.Accumulation() {
		return stay
	}
	why := fmt.Sprintf("%v is available again", available)
	if h.room > 0 {
		why += fmt.Sprintf(", up from %v when the micro-batch was reduced", h.room)
	}
	return Decision{Remedy: Grow, Plan: plan, Reason: changeReason(h.Plan, plan, why)}
}

// larger returns the micro-batch that the available memory should hold. It computes
// the size from h.line, if that is known. Otherwise the size grows in proportion to
// the memory, which errs on the safe side, because part of the memory does not grow
// with the micro-batch. If no earlier amount of memory is known, the size doubles.
// In every case, the result is at least the largest size that has already run in the
// available memory or less.
func (h History) larger(p Policy, available memory.Bytes) int {
	var n int
	switch {
	case h.line.PerSample > 0:
		n = affordable(h.line, p.budget(available))
	case h.room > 0:
		n = int(float64(h.Plan.Micro) * float64(available) / float64(h.room))
	default:
		n = 2 * h.Plan.Micro
	}
	if roomMargin*float64(available) >= float64(h.proven.Room) {
		n = max(n, h.proven.Micro)
	}
	return n
}

// affordable returns the largest n with Base + PerSample·n ≤ budget, or 0 if there
// is none.
func affordable(line search.Line, budget float64) int {
	n := math.Floor((budget - line.Base) / line.PerSample)
	return int(max(0, min(n, math.MaxInt32)))
}
