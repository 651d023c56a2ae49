package wrap

import "time"

const (
	// youngDeath is the length below which an attempt counts as having ended in a young
	// death. A command that ends so soon has not started to train.
	youngDeath = 10 * time.Second
	// youngDeaths is how many young deaths in a row make headroom give up.
	youngDeaths = 8

	firstPause, longestPause = time.Second, time.Minute
)

// pause returns how long to wait before a command is started again. lengths holds the
// length of each of its attempts, oldest first. After an attempt of at least [youngDeath] the
// wait is 0. After one young death it is a second, and it doubles with each further one
// in a row, up to a minute. again is false after [youngDeaths] of them in a row, because
// another start would be of no use.
func pause(lengths []time.Duration) (wait time.Duration, again bool) {
	young := 0
	for i := len(lengths) - 1; i >= 0 && lengths[i] < youngDeath; i-- {
		young++
	}
	switch {
	case young == 0:
		return 0, true
	case young >= youngDeaths:
		return 0, false
	}
	return min(longestPause, firstPause<<(young-1)), true
}
