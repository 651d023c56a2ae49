package wrap

import (
	"os"
	"syscall"

	"headroom/machine"
)

// Standby is the part of a start that takes most of its time and does not depend on the
// command: listening for signals, each of which waits for another thread. So it can be
// prepared while something else is done.
type Standby struct {
	made    chan struct{}
	signals *listener
	kills   machine.Kills
}

// StandBy begins to prepare a Standby for the next [Start]. From then on signals to this
// process wait for the child: the start must follow soon, or the process must end, or
// the Standby must be released.
func StandBy() *Standby {
	s := &Standby{made: make(chan struct{})}
	go func() {
		defer close(s.made)
		s.signals, s.kills = listen(), machine.CountKills()
		if p, err := os.FindProcess(os.Getpid()); err == nil { // the os package tests once, by starting a child, whether pidfds work
			_ = p.Release()
		}
	}()
	return s
}

// Release stops listening; signals that came meanwhile take their usual effect. No
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
