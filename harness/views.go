package harness

import (
	"time"

	"headroom/recovery"
	"headroom/runs"
)

// Journal is the part of a [Session] for those who see what happens in a run and decide
// nothing, such as a worker's connections and the watch over a command. Any goroutine may
// use it at any time.
type Journal interface {
	Number() int
	Note(runs.Entry)
	Survived(runs.Entry)
	Stepped(runs.ProcessStep)
	Made() int
	Pieces() int
	KeepPieces(rows int)
	Commands(p runs.Process, place string)
	Beat() (stop func())
}

// Decider is the part of a [Session] that says how a run goes on. Only the body's own
// goroutine uses it, because each decision follows from those before.
type Decider interface {
	Running() recovery.Plan
	Recomputing() bool
	Eased() []string
	Handle(e recovery.Event, took time.Duration) (recovery.Decision, error)
	HandleIf(e recovery.Event, took time.Duration, possible func(Settings) error) (recovery.Decision, error)
}

var (
	_ Journal = (*Session)(nil)
	_ Decider = (*Session)(nil)
)
