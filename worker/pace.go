package worker

import "time"

const (
	// paceLeast is the shortest time between two steps of a process that are recorded.
	paceLeast = time.Second
	// paceShare is roughly how many steps are recorded while the elapsed time doubles.
	paceShare = 1000
)

// pace chooses which of the steps that a process reports are recorded: one a second at
// first, then fewer and fewer, so that a week of them takes some ten thousand lines. It is
// pure.
type pace struct {
	begun, last time.Time
	step        int
}

// due reports whether a step is to be recorded, and how many seconds a step has taken
// since the last recorded one; 0 if there was none. The last step of a process is always
// recorded.
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
