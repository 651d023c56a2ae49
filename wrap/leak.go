package wrap

import (
	"fmt"
	"time"
)

// RunsOut is when a command's memory will run out if what it holds keeps growing.
type RunsOut struct {
	At  time.Time // zero while nothing suggests that it will
	Why string    // what grows, and how fast
}

// leakWatch says when to start a leaking command again: just after a checkpoint, if its
// memory would run out before the next one. It is pure, and serves one life.
type leakWatch struct {
	saved time.Time     // when the newest complete checkpoint of this life was written; zero if there is none
	every time.Duration // time since the checkpoint before it, or since the life began
	told  time.Time     // the value of saved when due last returned true
	began time.Time
}

// due reports, once for each checkpoint, whether now is the time to start again.
// complete is when the complete checkpoints were written, newest first.
func (l *leakWatch) due(complete []time.Time, out RunsOut) bool {
	if len(complete) > 0 && complete[0].After(l.began) && complete[0].After(l.saved) {
		before := l.began
		if l.saved.After(before) { // that checkpoint may be gone
			before = l.saved
		}
		for _, other := range complete[1:] {
			if other.After(before) && other.Before(complete[0]) {
				before = other
			}
		}
		l.saved, l.every = complete[0], complete[0].Sub(before)
	}
	if l.saved.IsZero() || out.At.IsZero() || l.told.Equal(l.saved) {
		return false
	}
	next := l.saved.Add(l.every + l.every/leakMargin)
	if !out.At.Before(next) {
		return false
	}
	l.told = l.saved
	return true
}

// leakMargin sets how late the next checkpoint may be: a tenth of the time between checkpoints.
const leakMargin = 10

// why says in words what was seen.
func (l *leakWatch) why(out RunsOut) string {
	return fmt.Sprintf("memory would run out before the next checkpoint, due about %s after the one at %s: %s",
		lasting(l.every.Seconds()), l.saved.Format(time.TimeOnly), out.Why)
}
