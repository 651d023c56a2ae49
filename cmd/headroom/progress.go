package main

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"headroom/harness"
)

// progress shows how a run goes on: on a terminal as a line that is rewritten,
// elsewhere as lines now and then.
type progress struct {
	u        *ui
	total    int       // steps of the whole run
	started  time.Time // of this command
	shown    time.Time // the newest line or rewrite
	pace     float64   // seconds a step, smoothed
	failures int       // of memory, in this command
	hidden   bool      // --no-progress
}

// rewriteEvery is as often as eyes can follow.
const rewriteEvery = 100 * time.Millisecond

// step shows s if it is time to.
func (p *progress) step(s harness.StepReport) {
	p.pace = smooth(p.pace, s.Seconds)
	if p.u.quiet || p.hidden || !p.due(s) {
		return
	}
	p.shown = p.u.now()
	if p.u.screen.live {
		p.u.screen.show(fitted(p.parts(s), p.u.screen.width()-1))
		return
	}
	p.u.line(plain, strings.Join(p.parts(s), " · "))
}

// due tells whether s is to be shown: always the last step, and without a
// terminal the first one and then ever more seldom, from every 5 seconds to
// every minute, so that a night's log can still be read.
func (p *progress) due(s harness.StepReport) bool {
	now := p.u.now()
	if s.Step == p.total {
		return true
	}
	if p.u.screen.live {
		return now.Sub(p.shown) >= rewriteEvery
	}
	gap := min(max(now.Sub(p.started)/10, 5*time.Second), time.Minute)
	return now.Sub(p.shown) >= gap
}

// parts are what the line says, the most important first.
func (p *progress) parts(s harness.StepReport) []string {
	parts := []string{
		fmt.Sprintf("step %d/%d", s.Step, p.total),
		fmt.Sprintf("loss %.4g", s.Loss),
		"micro-batch " + splits(s.Splits),
		fmt.Sprintf("peak %v of %v", s.Memory.Peak, s.Memory.Capacity),
	}
	if p.pace > 0 {
		parts = append(parts, rate(float64(s.Samples)/p.pace))
	}
	if p.failures > 0 {
		parts = append(parts, plural(p.failures, "failure")+" survived")
	}
	if left := time.Duration(p.pace * float64(p.total-s.Step) * float64(time.Second)); left >= time.Second {
		parts = append(parts, roughly(left)+" left")
	}
	return parts
}

// splits is how a step was cut, as people speak of it: "27 × 3".
func splits(sizes []int) string {
	if len(sizes) == 0 {
		return "?"
	}
	return fmt.Sprintf("%d × %d", sizes[0], len(sizes))
}

// fitted joins as many of the parts as fit into width columns, and always as
// much of the first one as does.
func fitted(parts []string, width int) string {
	line := parts[0]
	if utf8.RuneCountInString(line) > width {
		return line[:max(0, width)] // step and numbers are ASCII
	}
	for _, part := range parts[1:] {
		longer := line + " · " + part
		if utf8.RuneCountInString(longer) > width {
			break
		}
		line = longer
	}
	return line
}

// smooth is a moving mean of about the last ten values.
func smooth(mean, next float64) float64 {
	if mean == 0 {
		return next
	}
	return mean + (next-mean)/10
}

// roughly is d with the precision that a person wants.
func roughly(d time.Duration) string {
	switch {
	case d >= 48*time.Hour:
		return fmt.Sprintf("%.0f days", d.Hours()/24)
	case d >= time.Hour:
		return fmt.Sprintf("%dh %02dm", int(d.Hours()), int(d.Minutes())%60)
	case d >= time.Minute:
		return fmt.Sprintf("%dm %02ds", int(d.Minutes()), int(d.Seconds())%60)
	}
	return fmt.Sprintf("%.0fs", d.Seconds())
}

// rate is a speed with three digits and no exponent.
func rate(samples float64) string {
	if samples >= 100 {
		return fmt.Sprintf("%.0f samples/s", samples)
	}
	return fmt.Sprintf("%.3g samples/s", samples)
}

func plural(n int, word string) string {
	if n == 1 {
		return "1 " + word
	}
	return fmt.Sprintf("%d %ss", n, word)
}
