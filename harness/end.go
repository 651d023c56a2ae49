package harness

import (
	"context"
	"errors"
	"fmt"

	"headroom/recovery"
	"headroom/runs"
)

// ErrInterrupted is returned after a clean, resumable stop.
var ErrInterrupted = errors.New("interrupted; the same command continues from here")

// Unproven is an error of a body that could have gone on if the user had vouched for conditions
// that headroom cannot verify.
type Unproven interface {
	error
	Unproven() []string // the conditions, in words
}

// errFinished means that the run had already finished and nothing was left to do.
var errFinished = errors.New("already finished")

// End records how the run ended and returns its result. A nil err means that all steps
// were completed. End returns err, or nil if err says that the run had already finished.
func (s *Session) End(err error) (Result, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer func() {
		switch { // status.json still says that the run is running
		case s.statusErr != nil && s.f.EndRecorded():
			s.note(runs.Entry{Kind: runs.KindWarning, Text: fmt.Sprintf("cannot write how the run ended: %v; headroom status knows only that it has ended", s.statusErr)})
		case s.statusErr != nil: // readers would think that it was killed
			s.note(runs.Entry{Kind: runs.KindWarning, Text: fmt.Sprintf("cannot record how the run ended: %v; headroom status will call the run stale", s.statusErr)})
		}
	}()
	s.status.Command, s.status.Socket = nil, ""
	s.noteRemovals()
	tally := s.f.Tally()
	s.result.Steps, s.result.AllFailures, s.result.DeviceGone = s.step, tally.Failures, tally.Gone
	if s.planned {
		s.result.Plan = s.history.Plan
	}
	defer s.closeLog()
	if err == nil || errors.Is(err, errFinished) {
		s.result.Finished = true
		if tally.Newest != runs.KindDone {
			s.note(runs.Entry{Kind: runs.KindDone, Text: s.doneText(tally), Plan: &s.result.Plan})
			s.setStatus(runs.StateDone, "")
		}
		return s.result, nil
	}
	entry, state := s.ending(err)
	if entry.Kind == "" { // the run continues in another process
		s.setStatus(runs.StateRunning, err.Error())
		return s.result, err
	}
	s.note(entry)
	s.setStatus(state, err.Error())
	return s.result, err
}

// ending returns the last journal entry of a run that ends with err, and the
// state in which err leaves the run. The entry is empty if the run continues in a
// new process.
func (s *Session) ending(err error) (runs.Entry, runs.State) {
	var gaveUp *GaveUpError
	var gone *DeviceGoneError
	switch {
	case errors.As(err, &gone) && gone.Decision.Remedy == recovery.Exec:
		return runs.Entry{}, runs.StateRunning
	case errors.As(err, &gone) && gone.ending:
		return runs.Entry{Kind: runs.KindInterrupted, Text: fmt.Sprintf("%v; no checkpoint written; %s", err, gone.Decision.Hint), Decision: &gone.Decision}, runs.StateInterrupted
	case errors.As(err, &gone):
		return runs.Entry{Kind: runs.KindFailed, Text: err.Error(), Decision: &gone.Decision}, runs.StateFailed
	case errors.Is(err, ErrInterrupted):
		return runs.Entry{Kind: runs.KindInterrupted, Text: s.interruptedText()}, runs.StateInterrupted
	case errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded):
		return runs.Entry{Kind: runs.KindInterrupted, Text: fmt.Sprintf("%v; no checkpoint written; the next attempt starts from step %d", err, max(0, s.saved))}, runs.StateInterrupted
	case errors.As(err, &gaveUp):
		return runs.Entry{Kind: runs.KindFailed, Text: fmt.Sprintf("gave up in step %d; what would help: %s", gaveUp.Step, gaveUp.Decision.Hint),
			Verdict: gaveUp.Decision.Verdict, Decision: &gaveUp.Decision}, runs.StateFailed
	}
	entry := runs.Entry{Kind: runs.KindFailed, Text: err.Error()}
	var infinite *NotFiniteError
	var unproven Unproven
	switch {
	case errors.As(err, &infinite):
		entry.NotFinite = infinite.What
	case errors.As(err, &unproven):
		entry.Unproven = unproven.Unproven()
	}
	return entry, runs.StateFailed
}

// interruptedText says where the next process continues. If the job does not
// count its steps, only the checkpoints are known.
func (s *Session) interruptedText() string {
	switch {
	case s.o.Steps > 0:
		return fmt.Sprintf("interrupted after step %d of %d, checkpoint written", s.step, s.o.Steps)
	case s.saved >= 0:
		return fmt.Sprintf("interrupted; the newest checkpoint is from step %d", s.saved)
	}
	return "interrupted; there is no checkpoint"
}

// doneText returns the text of the last entry. It counts the failures of the
// whole run, including those that an earlier process survived before it was
// killed.
func (s *Session) doneText(tally runs.Tally) string {
	text := "done"
	if s.o.Steps > 0 {
		text = fmt.Sprintf("done: %d steps", s.step)
	}
	switch {
	case tally.Failures == 1:
		text += ", 1 out-of-memory failure survived"
	case tally.Failures > 1:
		text += fmt.Sprintf(", %d out-of-memory failures survived", tally.Failures)
	}
	if tally.Gone > 0 {
		text += fmt.Sprintf(", device lost %d×", tally.Gone)
	}
	return text
}
