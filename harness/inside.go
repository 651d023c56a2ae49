package harness

import (
	"go.uber.org/zap"

	"headroom/runs"
)

// Survived takes a failure of memory into the books that a worker recovered from
// inside a process: e tells it, and what was done. It is of no step of this session
// and asks nothing of it: the plan of the run stays.
func (s *Session) Survived(e runs.Entry) {
	e.Kind = runs.KindSurvived
	if e.Failed() {
		s.result.Failures++
		s.result.InPlace++
	}
	s.status.Verdict, s.status.Reason = e.Verdict, e.Text
	s.Note(e)
}

// Stepped takes a step that a worker has seen into metrics.jsonl. What cannot be written
// waits there, and the journal says so if its lines cannot be written either.
func (s *Session) Stepped(p runs.ProcessStep) {
	p.Attempt = s.attempt
	if err := s.f.AddProcessStep(p); err != nil {
		s.log.Debug("metrics.jsonl cannot be written", zap.Error(err))
	}
}

// Pieces is how many rows a worker may run at once, by what it has learned; 0 if it
// never ran out of memory.
func (s *Session) Pieces() int { return s.pieces }

// KeepPieces hands that on to the next attempt.
func (s *Session) KeepPieces(rows int) {
	if rows == s.pieces {
		return
	}
	s.pieces = rows
	s.writeLearned()
}
