package wrap

import "time"

const (
	// YoungDeath is how long a life must last not to count as a death in youth: a
	// command that ends sooner has not got as far as training.
	YoungDeath = 10 * time.Second
	// YoungDeaths is the limit on the number of shorter lives in a row.
	YoungDeaths = 8

	firstPause, longestPause = time.Second, time.Minute
)

// Pause is how long to wait before a command is started again, from how long each
// of its lives lasted, oldest first. After a life of at least [YoungDeath] it is 0;
// after one death in youth it is a second, after each further one in a row twice as
// long, up to a minute. again is false after [YoungDeaths] of them in a row: then
// starting the command once more would be of no use. Pure.
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
