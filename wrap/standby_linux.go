package wrap

import (
	"os"
	"syscall"

	"headroom/machine"
)

// Standby is what takes most of the time of a start and does not depend on the command:
// listening for signals, each of which waits for another thread. So it can be made while
// something else is done.
type Standby struct {
	made    chan struct{}
	signals *listener
	kills   machine.Kills
}

// StandBy begins to make one, for the next [Start]. From here on signals to this
// process wait for the child: the start must follow soon, or the process must end, or
// it must be released.
func StandBy() *Standby {
	s := &Standby{made: make(chan struct{})}
	go func() {
		defer close(s.made)
		s.signals, s.kills = listen(), machine.CountKills()
		if p, err := os.FindProcess(os.Getpid()); err == nil { // the library tests once, on a child, what it may do to one
			_ = p.Release()
		}
	}()
	return s
}

// Release gives the signals back; those that came meanwhile take their usual effect. No
// [Start] may use s afterwards. It may be called on nil.
func (s *Standby) Release() {
	if s == nil {
		return
	}
	<-s.made
	s.signals.stop()
	for sent := range s.signals.in {
		if sent, ok := sent.(syscall.Signal); ok {
			_ = syscall.Kill(os.Getpid(), sent)
		}
	}
}
