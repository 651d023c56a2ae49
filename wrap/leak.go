package wrap

import (
	"fmt"
	"time"

	"headroom/wrap/exits"
)

// leakWatch decides when to restart a leaking command: just after a checkpoint, if memory
// would run out before the next one. It serves one attempt, and reads no clock and no files.
type leakWatch struct {
	saved time.Time     // when the newest complete checkpoint of this attempt was written; zero if there is none
	every time.Duration // time from the checkpoint before that one, or from the beginning of the attempt, until saved
	told  time.Time     // the value of saved when due last returned true
	began time.Time     // when the attempt began
}

// due reports whether now is the time to restart the command. It returns true at most
// once for each checkpoint. complete holds the times at which the complete checkpoints
// were written, newest first, and runsOut is when memory will run out, or zero.
func (l *leakWatch) due(complete []time.Time, runsOut time.Time) bool {
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
	if l.saved.IsZero() || runsOut.IsZero() || l.told.Equal(l.saved) {
		return false
	}
	next := l.saved.Add(l.every + l.every/leakMargin)
	if !runsOut.Before(next) {
		return false
	}
	l.told = l.saved
	return true
}

// leakMargin sets how late the next checkpoint may be: by 1/leakMargin of the time
// between checkpoints.
const leakMargin = 10

// why returns the reason for a restart in words. grown says what grows, and how fast.
func (l *leakWatch) why(grown string) string {
	return fmt.Sprintf("memory would run out before the next checkpoint, due about %s after the one at %s: %s",
		exits.Lasting(l.every.Seconds()), l.saved.Format(time.TimeOnly), grown)
}
