package harness

import (
	"time"

	"go.uber.org/zap"

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
	Answers(socket string)
	Beat() (stop func())
}

var _ Journal = (*Session)(nil)

// Survived records an out-of-memory failure from which a worker recovered inside a process. e says
// what failed and what was done. The failure belongs to no step of this session, and the run's
// plan does not change.
func (s *Session) Survived(e runs.Entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e.Kind = runs.KindSurvived
	if e.Failed() {
		s.result.Failures++
		s.result.InPlace++
	}
	s.status.Verdict, s.status.Reason = e.Verdict, e.Text
	s.note(e)
}

// Stepped adds a step that a worker has seen to metrics.jsonl. A line that cannot be written is
// kept in memory until it can be. The failure is reported only if the journal cannot be written
// either.
func (s *Session) Stepped(p runs.ProcessStep) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p.Attempt = s.attempt
	s.made = max(s.made, p.Made)
	if err := s.f.AddProcessStep(p); err != nil {
		s.log.Debug("metrics.jsonl cannot be written", zap.Error(err))
	}
}

// Made returns the number of optimizer steps that a worker has seen in this attempt: the most
// that one process has made.
func (s *Session) Made() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.made
}

// firstBeat is how long after its start an attempt of a command is first recorded as still
// running. A shorter one needs no such record. beatEvery is the interval between further records.
const firstBeat, beatEvery = time.Second, 15 * time.Second

// Beat keeps status.json up to date while a command is alive, until stop is called. Hours can pass
// in which nothing else is written, so if the run is killed, this file still shows when it was last
// alive.
func (s *Session) Beat() (stop func()) {
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		next := time.NewTimer(firstBeat)
		defer next.Stop()
		for {
			select {
			case <-quit:
				s.beat(0)
				return
			case <-next.C:
				s.beat(beatEvery)
				next.Reset(beatEvery)
			}
		}
	}()
	return func() { close(quit); <-done }
}

// beat records that the command is alive, and will be again after the given time. 0 means that it
// has ended; beat then writes nothing, and the 0 is written with the next status.
func (s *Session) beat(every time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.status.Every = every.Seconds(); every > 0 {
		s.setStatus(runs.StateRunning, s.status.Reason)
	}
}

// Commands records at once which process is the command that has just been started, so that it can
// be recognised if this process is killed. place is where the command keeps its checkpoints. The
// record lasts until the next attempt or the end of the run.
func (s *Session) Commands(p runs.Process, place string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status.Command, s.status.Place = &p, place
	s.setStatus(runs.StateRunning, s.status.Reason)
}

// Answers records where the command's processes can be asked for an account of their memory: until
// the next attempt or the end of the run.
func (s *Session) Answers(socket string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status.Socket = socket
}

// Pieces returns how many rows a worker may run at once, as learned from its failures. It is 0 if
// the worker never ran out of memory.
func (s *Session) Pieces() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pieces
}

// KeepPieces sets the number that Pieces returns, also for later attempts and processes.
func (s *Session) KeepPieces(rows int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if rows == s.pieces {
		return
	}
	s.pieces = rows
	s.writeLearned()
}
