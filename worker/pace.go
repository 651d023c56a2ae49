package worker

import "time"

const (
	// paceLeast is the shortest time between two recorded steps of a process.
	paceLeast = time.Second
	// paceShare is roughly how many steps are recorded while the elapsed time doubles.
	paceShare = 1000
)

// pace chooses which of the steps that a process reports are recorded: at first one per
// second, then fewer and fewer, so that a week of steps takes fewer than ten thousand
// lines. It reads no clock.
type pace struct {
	begun, last time.Time
	step        int
}

// due reports whether a step is to be recorded. seconds is the average time of a step since
// the last recorded one, or 0 if there is no such step. The caller also records the last
// step of a process, whether or not it is due.
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
