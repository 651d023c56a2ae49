//go:build !linux

package child

import (
	"errors"
	"syscall"
	"time"

	"headroom/runs"
	"headroom/wrap/command"
)

// Child is one attempt of a command. It can be started only on Linux.
type Child struct{}

// Start returns an error, because commands can be run on Linux only.
func Start(command.Line, Options) (*Child, error) {
	return nil, errors.New("commands can be run on Linux only")
}

// Wait is never reached, as there is no Child.
func (*Child) Wait() command.Exit { return command.Exit{} }

// Left is never reached, as there is no Child.
func (*Child) Left() []Left { return nil }

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

// Owns is never reached, as there is no Child.
func (*Child) Owns(int) bool { return false }

func (Left) Runs() bool { return false }

func (Left) Holds([]string) string { return "" }

func (Left) runsScript(string) bool { return false }

func End([]Left, time.Duration, func(error)) {}

func bootID() string { return "" }

func identified(runs.Process) (Left, bool) { return Left{}, false }

func marked(string, uint64) []Left { return nil }

// Identity is never reached, as there is no Child.
func (*Child) Identity() runs.Process { return runs.Process{} }
