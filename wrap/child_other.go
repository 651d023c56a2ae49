//go:build !linux

package wrap

import (
	"errors"
	"syscall"
)

// Child is one life of a command. It needs Linux: elsewhere none can be started.
type Child struct{}

// Standby is empty here.
type Standby struct{}

// StandBy does nothing.
func StandBy() *Standby { return nil }

// Release does nothing.
func (*Standby) Release() {}

// Start returns an error.
func Start(Command, ChildOptions) (*Child, error) {
	return nil, errors.New("commands can be run on Linux only")
}

// Startable returns nil: Start returns the error.
func (Command) Startable() error { return nil }

// Wait is never reached, as there is no Child.
func (*Child) Wait() Exit { return Exit{} }

// BreakLine is never reached, as there is no Child.
func (*Child) BreakLine() bool { return false }

// Done is never reached, as there is no Child.
func (*Child) Done() <-chan struct{} { return nil }

// Pid is never reached, as there is no Child.
func (*Child) Pid() int { return 0 }

// Signal is never reached, as there is no Child.
func (*Child) Signal(syscall.Signal) error { return nil }

// Stop is never reached, as there is no Child.
func (*Child) Stop() {}

// Owns is never called.
func (*Child) Owns(int) bool { return false }
