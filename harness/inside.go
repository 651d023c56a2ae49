package harness

import (
	"time"

	"go.uber.org/zap"

	"headroom/runs"
)

// Survived records an out-of-memory failure that a worker recovered from inside a
// process: e says what failed and what was done. It belongs to no step of this
// session and requires nothing of it: the run's plan does not change.
func (s *Session) Survived(e runs.Entry) {
	e.Kind = runs.KindSurvived
	if e.Failed() {
		s.result.Failures++
		s.result.InPlace++
	}
	s.status.Verdict, s.status.Reason = e.Verdict, e.Text
	s.Note(e)
}

// Stepped adds a step that a worker has seen to metrics.jsonl. What cannot be written
// waits in memory; this is only reported if the journal cannot be written either.
func (s *Session) Stepped(p runs.ProcessStep) {
	p.Attempt = s.attempt
	if err := s.f.AddProcessStep(p); err != nil {
		s.log.Debug("metrics.jsonl cannot be written", zap.Error(err))
	}
}

// Beat brings status.json up to date while a command is alive, because nothing else may be written
// for hours: if the run is killed, the file shows when it was last alive. every is the interval at
// which the caller calls Beat; 0 means that the command has ended, which is written with the next
// status.
func (s *Session) Beat(every time.Duration) {
	if s.status.Every = every.Seconds(); every > 0 {
		s.setStatus(runs.StateRunning, s.status.Reason)
	}
}

// Pieces is how many rows a worker may run at once, as far as it has learned; 0 if
// it never ran out of memory.
func (s *Session) Pieces() int { return s.pieces }

// KeepPieces sets the number that Pieces returns, for the next attempt too.
func (s *Session) KeepPieces(rows int) {
	if rows == s.pieces {
		return
	}
	s.pieces = rows
	s.writeLearned()
}
