package worker

import "time"

const (
	// paceLeast is the shortest time between two steps of a process that are written down.
	paceLeast = time.Second
	// paceShare is how many are written down while the time that has gone doubles, about.
	paceShare = 1000
)

// pace says which of the steps that a process tells of are written down: at first one a
// second, and ever fewer, so that a week of them is some ten thousand lines. It is pure.
type pace struct {
	begun, last time.Time
	step        int
}

// due reports whether a step is, and how long a step took since the one before it, in
// seconds; 0 if there was none.
func (p *pace) due(now time.Time, step int) (seconds float64, ok bool) {
	if p.begun.IsZero() {
		p.begun, p.last, p.step = now, now, step
		return 0, true
	}
	since := now.Sub(p.last)
	if step <= p.step || since < max(paceLeast, p.last.Sub(p.begun)/paceShare) {
		return 0, false
	}
	seconds = since.Seconds() / float64(step-p.step)
	p.last, p.step = now, step
	return seconds, true
}
