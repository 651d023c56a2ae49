package harness

import (
	"slices"

	"headroom/memory"
	"headroom/recovery"
)

// peaksKept is the number of newest peaks from which the typical peak of a plan
// is computed.
const peaksKept = 64

// Evidence collects what an attempt has measured so far. [memory.Diagnose]
// judges failures by it.
type Evidence struct {
	baseline memory.Stats
	boundary ring
	peaks    map[recovery.Plan]*ring
}

// NewEvidence returns the evidence of an attempt that has not finished a step yet.
// baseline is the state of memory before the first step.
func NewEvidence(baseline memory.Stats) Evidence {
	return Evidence{baseline: baseline, boundary: ring{size: memory.LeakWindow}, peaks: map[recovery.Plan]*ring{}}
}

// Add adds a step that finished under plan. s is the state of memory after that step.
func (e *Evidence) Add(plan recovery.Plan, s memory.Stats) {
	e.boundary.push(s.Allocated)
	peaks := e.peaks[plan]
	if peaks == nil {
		peaks = &ring{size: peaksKept}
		e.peaks[plan] = peaks
	}
	peaks.push(s.Peak)
}

// Of returns the evidence about a failure under plan. minMicro is the smallest
// micro-batch allowed.
func (e *Evidence) Of(failure memory.OutOfMemoryError, plan recovery.Plan, minMicro int) memory.Evidence {
	found := memory.Evidence{Failure: failure, Baseline: e.baseline, Boundary: e.boundary.ordered(), MinMicro: minMicro}
	if peaks := e.peaks[plan]; peaks != nil {
		sorted := peaks.ordered()
		slices.Sort(sorted)
		found.Typical, found.Like = sorted[len(sorted)/2], len(sorted)
	}
	return found
}

// ring holds the newest amounts, at most size of them.
type ring struct {
	size   int
	next   int
	values []memory.Bytes
}

func (r *ring) push(v memory.Bytes) {
	if len(r.values) < r.size {
		r.values = append(r.values, v)
		return
	}
	r.values[r.next] = v
	r.next = (r.next + 1) % r.size
}

// ordered returns a copy of the amounts, oldest first.
func (r *ring) ordered() []memory.Bytes {
	return append(slices.Clone(r.values[r.next:]), r.values[:r.next]...)
}
