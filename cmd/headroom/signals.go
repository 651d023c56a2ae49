package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"headroom/harness"
	"headroom/runs"
)

// stopping turns signals into the two ways in which a run can be asked to end. The
// first signal closes interrupt: the run should finish its step, save and stop. The
// second cancels the context: the run should stop at once. A third signal has the
// system's default effect, so that a device that hangs cannot block the terminal.
// stopping calls heard for each of the first two signals.
//
// done restores the default effect of signals. When it returns, heard has been called
// for every signal that came before. done may be called twice.
//
// A signal that was ignored when the process started (nohup, a background job
// of a script) stays ignored.
func stopping(ctx context.Context, heard func(s os.Signal, again bool)) (_ context.Context, interrupt <-chan struct{}, done func()) {
	ctx, cancel := context.WithCancel(ctx)
	signals := make(chan os.Signal, 2)
	for _, s := range []os.Signal{os.Interrupt, syscall.SIGTERM, syscall.SIGHUP} {
		if !signal.Ignored(s) {
			signal.Notify(signals, s)
		}
	}
	asked, answered := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(answered)
		if s, more := <-signals; more {
			heard(s, false)
			close(asked)
		}
		if s, more := <-signals; more {
			signal.Stop(signals)
			heard(s, true)
			cancel()
		}
	}()
	return ctx, asked, sync.OnceFunc(func() {
		signal.Stop(signals)
		close(signals)
		<-answered
		cancel()
	})
}

// phase is how far an interruptible command has got.
type phase int32

const (
	opening phase = iota // reads, and leaves nothing half changed: may be abandoned at once
	working              // trains: may be abandoned after the second signal
	closing              // reports the outcome: is always waited for
	left                 // abandoned: nobody waits for it any more
)

// stage is the phase that a command is in. Two goroutines use it: the one that works,
// and the one that answers the signals.
type stage struct{ phase atomic.Int32 }

func (s *stage) in(p phase) bool { return s.phase.Load() == int32(p) }

// move moves the command from one phase to another, and reports whether it did. It does
// nothing if the command is not in the phase from, because the other goroutine has already
// moved it.
func (s *stage) move(from, to phase) bool {
	return s.phase.CompareAndSwap(int32(from), int32(to))
}

// grace is how long work may take to respond to the second signal.
const grace = 500 * time.Millisecond

// attended calls work, which moves s on from opening, and returns the result of work. If work does
// not respond to a signal in time, attended abandons it and returns the result of leave: a read
// from a pipe that nobody writes to does not notice a signal, and neither does a long operation of
// the device. Nothing is lost by that, because every file that work writes is either complete or
// absent. The abandoned call to work ends with the process.
func (s *stage) attended(ctx context.Context, interrupt <-chan struct{}, work func() error, leave func(from phase) error) error {
	worked := make(chan error, 1)
	go func() { worked <- work() }()
	select {
	case err := <-worked:
		return err
	case <-interrupt:
	}
	if s.move(opening, left) {
		return leave(opening)
	}
	select {
	case err := <-worked:
		return err
	case <-ctx.Done():
	}
	late := time.NewTimer(grace)
	defer late.Stop()
	select {
	case err := <-worked:
		return err
	case <-late.C:
	}
	if s.move(working, left) {
		return leave(working)
	}
	return <-worked
}

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
