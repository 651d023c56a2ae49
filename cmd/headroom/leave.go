package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"headroom/harness"
	"headroom/runs"
)

// account keeps the result of a run so far, for use when the run is abandoned and its
// final result never becomes available. It is safe for concurrent use.
type account struct {
	mu     sync.Mutex
	result harness.Result
	at     int // newest attempt
}

func (a *account) entry(e runs.Entry) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if e.Kind == runs.KindAttempt {
		if a.result.Attempts == 0 {
			a.result.Resumed = e.Step
		}
		a.result.Attempts++
		a.result.Steps, a.at = e.Step, e.Attempt
	}
	if e.Failed() {
		a.result.Failures++
	}
	if e.Plan != nil {
		a.result.Plan = *e.Plan
	}
}

func (a *account) step(r runs.StepReport) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.result.Steps, a.result.Last = r.Step, r
}

func (a *account) soFar() (harness.Result, int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.result, a.at
}

// farewell is how long it may take to write the last records and messages of an abandoned
// run. If the run hangs in a write to the disk or to stdout, these writes hang, too.
const farewell = 300 * time.Millisecond

// leave ends a command whose work is still in progress, without waiting for it. from is the
// phase that the command was in. before is the handover from an earlier process, or nil if
// this process replaced none. leave returns the error to exit with.
func (s *runner) leave(from phase, before *handover) error {
	if from == opening {
		return s.notOpened(before, harness.ErrInterrupted)
	}
	result, attempt := s.account.soFar()
	before.carry(&result)
	err := fmt.Errorf("stopped during step %d, without finishing it: %w", result.Steps+1, context.Canceled)
	s.u.Interrupted(result, s.progress.Total, false, s.kept())
	said := make(chan struct{})
	go func() {
		defer close(said)
		s.last(result, err)
		s.recordLeft(attempt, result.Steps, err)
		_ = s.crash.close() // if the file is left behind empty, the next process removes it
	}()
	late := time.NewTimer(farewell)
	defer late.Stop()
	select {
	case <-said:
	case <-late.C:
	}
	return err
}

// recordLeft records in the journal and the status that the run was abandoned. Errors are
// ignored: a run without this record counts as stale, like one that was killed.
func (s *runner) recordLeft(attempt, step int, why error) {
	now := s.u.Now()
	_ = s.folder.Record(runs.Entry{Time: now, Attempt: attempt, Step: step, Kind: runs.KindInterrupted, Text: why.Error() + "; no checkpoint written"})
	status, err := runs.ReadStatus(s.dir)
	if err != nil {
		return
	}
	status.State, status.Reason, status.Updated = runs.StateInterrupted, why.Error(), now
	_ = s.folder.SetStatus(status)
}
