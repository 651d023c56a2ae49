package wrap

import (
	"os"
	"syscall"

	"headroom/machine"
)

// Standby is the part of a start that takes the most time and does not depend on the
// command: chiefly, starting to listen for signals. For each signal, Go waits for another
// thread. A Standby can therefore be prepared while something else is done.
type Standby struct {
	made    chan struct{}
	signals *listener
	kills   machine.Kills
}

// StandBy begins to prepare a Standby for the next [Start], and returns at once. From
// then on, signals sent to this process are held until there is a child to pass them to.
// The caller must therefore soon call Start, release the Standby, or end the process.
func StandBy() *Standby {
	s := &Standby{made: make(chan struct{})}
	go func() {
		defer close(s.made)
		s.signals, s.kills = listen(), machine.CountKills()
		if p, err := os.FindProcess(os.Getpid()); err == nil { // makes the os package test now, by starting a child, whether pidfds work
			_ = p.Release()
		}
	}()
	return s
}

// Release stops listening. Signals that arrived in the meantime then take their usual
// effect. No [Start] may use s afterwards. s may be nil.
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
