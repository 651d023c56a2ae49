package wrap

import (
	"fmt"
	"time"

	"headroom/wrap/exits"
)

// RunsOut says when a command will run out of memory if its memory use keeps growing.
type RunsOut struct {
	At  time.Time // zero if nothing suggests that memory will run out
	Why string    // what grows, and how fast
}

// leakWatch decides when to restart a leaking command: just after a checkpoint, if memory
// would run out before the next one. It serves one life, and reads no clock and no files.
type leakWatch struct {
	saved time.Time     // when the newest complete checkpoint of this life was written; zero if there is none
	every time.Duration // time from the checkpoint before that one, or from the beginning of the life, until saved
	told  time.Time     // the value of saved when due last returned true
	began time.Time     // when the life began
}

// due reports whether now is the time to restart the command. It returns true at most
// once for each checkpoint. complete holds the times at which the complete checkpoints
// were written, newest first.
func (l *leakWatch) due(complete []time.Time, out RunsOut) bool {
	if len(complete) > 0 && complete[0].After(l.began) && complete[0].After(l.saved) {
		before := l.began
		if l.saved.After(before) { // the checkpoint of that time may have been deleted, and is then not in complete
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

// leakMargin sets how late the next checkpoint may be: by 1/leakMargin of the time
// between checkpoints.
const leakMargin = 10

// why returns the reason for a restart in words.
func (l *leakWatch) why(out RunsOut) string {
	return fmt.Sprintf("memory would run out before the next checkpoint, due about %s after the one at %s: %s",
		exits.Lasting(l.every.Seconds()), l.saved.Format(time.TimeOnly), out.Why)
}
