package wrap

import (
	"fmt"
	"time"
)

// RunsOut is when a command's memory will have run out if what it holds keeps growing.
type RunsOut struct {
	At  time.Time // zero while nothing suggests that
	Why string    // what grows, and how fast
}

// leakWatch says when to start a leaking command again: just after a checkpoint, if its
// memory would run out before the next one. It is pure, and serves one life.
type leakWatch struct {
	saved time.Time     // when the newest complete checkpoint of this life was written; zero if there is none
	every time.Duration // from the one before, or from the beginning of the life
	told  time.Time     // the checkpoint after which that was last said
	began time.Time
}

// due reports, once for each checkpoint, whether this is the time. complete is when
// the complete checkpoints were written, newest first.
func (l *leakWatch) due(complete []time.Time, out RunsOut) bool {
	if len(complete) > 0 && complete[0].After(l.began) && complete[0].After(l.saved) {
		before := l.began
		if l.saved.After(before) { // it may be gone
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

// leakMargin is by what part of the time between checkpoints the next may be late: a tenth.
const leakMargin = 10

// why is what was seen, in words.
func (l *leakWatch) why(out RunsOut) string {
	return fmt.Sprintf("memory would run out before the next checkpoint, about %s after the one at %s: %s",
		lasting(l.every.Seconds()), l.saved.Format(time.TimeOnly), out.Why)
}
