package worker

import "time"

const (
	// paceLeast is the shortest time between two steps of a process that are written down.
	paceLeast = time.Second
	// paceShare is about how many are written down while the time gone by doubles.
	paceShare = 1000
)

// pace says which of the steps that a process reports are written down: one a second at
// first, then ever fewer, so that a week of them is some ten thousand lines. It is
// pure.
type pace struct {
	begun, last time.Time
	step        int
}

// due reports whether a step is to be written down, and how many seconds a step took
// since the last one that was; 0 if there was none. The last step of a process is in any
// case.
func (p *pace) due(now time.Time, step int) (seconds float64, ok bool) {
	if p.begun.IsZero() {
		p.begun, p.last, p.step = now, now, step
		return 0, true
	}
	since := now.Sub(p.last)
	if step <= p.step {
		return 0, false
	}
	seconds = since.Seconds() / float64(step-p.step)
	if since < max(paceLeast, p.last.Sub(p.begun)/paceShare) {
		return seconds, false
	}
	p.last, p.step = now, step
	return seconds, true
}
