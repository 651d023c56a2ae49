package wrap

import "time"

const (
	// YoungDeath is the length below which a life counts as having ended in a young
	// death. A command that ends so soon has not started to train.
	YoungDeath = 10 * time.Second
	// YoungDeaths is how many young deaths in a row make headroom give up.
	YoungDeaths = 8

	firstPause, longestPause = time.Second, time.Minute
)

// Pause returns how long to wait before a command is started again. lives holds the
// length of each of its lives, oldest first. After a life of at least [YoungDeath] the
// wait is 0. After one young death it is a second, and it doubles with each further one
// in a row, up to a minute. again is false after [YoungDeaths] of them in a row, because
// another start would be of no use.
func Pause(lives []time.Duration) (wait time.Duration, again bool) {
	young := 0
	for i := len(lives) - 1; i >= 0 && lives[i] < YoungDeath; i-- {
		young++
	}
	switch {
	case young == 0:
		return 0, true
	case young >= YoungDeaths:
		return 0, false
	}
	return min(longestPause, firstPause<<(young-1)), true
}
