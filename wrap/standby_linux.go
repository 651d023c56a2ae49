package wrap

import (
	"os"

	"headroom/machine"
)

// Standby is what a start takes most of its time for, and what does not depend on the
// command: that signals are heard, each of which waits for another thread. So it can be
// made while something else is done.
type Standby struct {
	made    chan struct{}
	signals *listener
	kills   machine.Kills
}

// StandBy begins to make one, for the next [Start]. From here on signals to this
// process wait for the child: the start must follow soon, or the process end.
func StandBy() *Standby {
	s := &Standby{made: make(chan struct{})}
	go func() {
		defer close(s.made)
		s.signals, s.kills = listen(), machine.CountKills()
		if p, err := os.FindProcess(os.Getpid()); err == nil { // the library tries once what it may do to a child, with a child
			_ = p.Release()
		}
	}()
	return s
}
