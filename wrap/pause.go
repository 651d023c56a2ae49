package wrap

import "time"

const (
	// YoungDeath is how long a life must last to count as one: a command that ends
	// sooner has not got as far as training.
	YoungDeath = 10 * time.Second
	// YoungDeaths is how many shorter lives in a row are the limit.
	YoungDeaths = 8

	firstPause, longestPause = time.Second, time.Minute
)

// Pause is how long to wait before a command is started again, from how long each
// of its lives lasted, oldest first. After a life of at least [YoungDeath] it is 0;
// after one death in youth a second, after each further one in a row twice as long,
// at most a minute. Again is false after [YoungDeaths] of them in a row: then
// starting it once more would help nobody. Pure.
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
