package harness

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"go.uber.org/zap"
)

// errRelaunch ends an attempt after which another one follows.
var errRelaunch = errors.New("relaunch")

// runner is one call of Run.
type runner struct {
	o       Options
	f       *Folder
	patient context.Context // ends with the run's context, or when an interrupt is asked for
	started time.Time
	host    string

	log     *zap.Logger // of the attempt, once there is one
	logFile *os.File

	trainer Trainer
	watch   Watch     // nil if the device cannot be watched
	read    time.Time // when the device was last read
	seen    evidence
	history History
	planned bool    // history has been started
	kept    Learned // that a later process can know of
	result  Result

	loadWaits int // in a row, for room to build the model

	number  int   // of the attempt, over all calls of Run
	step    int   // optimizer steps finished
	samples int64 // that they took
	begun   int   // steps finished when BeforeStep was last called; -1 if never
	saved   int   // step of the newest whole checkpoint; -1 if there is none

	status      Status
	interval    interval // what was done since the newest status
	journalDown bool     // the journal cannot be written, which has been told
	statusDown  bool     // likewise
}

// interval measures the speed between two statuses.
type interval struct {
	from    time.Time
	samples int
	seconds float64
}

func newRunner(patient context.Context, o Options) *runner {
	host, _ := os.Hostname() // a name for people
	now := o.Now()
	r := &runner{o: o, f: o.Folder, patient: patient, host: host, started: now, log: o.Log, saved: -1, begun: -1}
	r.interval.from, r.read = now, now
	r.status, _ = ReadStatus(o.Folder.Dir()) // what an earlier call knew; none is as good
	r.result.Plan = o.Plan
	r.number = r.f.Attempts()
	return r
}

// wanted says why the run is to end now: the context is done, an interrupt was
// asked for, or nil.
func (r *runner) wanted(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return r.canceled(ctx)
	}
	select {
	case <-r.o.Interrupt:
		return ErrInterrupted
	default:
		return nil
	}
}

func (r *runner) canceled(ctx context.Context) error {
	return fmt.Errorf("stopped after step %d: %w", r.step, ctx.Err())
}

// end records how the run ended and fills in the result.
func (r *runner) end(ctx context.Context, err error) (Result, error) {
	failures, losses, newest := r.f.tally()
	r.result.Steps, r.result.AllFailures, r.result.Losses = r.step, failures, losses
	if r.planned {
		r.result.Plan = r.history.Plan
	}
	if err == nil || errors.Is(err, errFinished) {
		r.result.Finished = true
		if newest == KindDone {
			return r.result, nil
		}
		r.record(Entry{Kind: KindDone, Text: doneText(r.step, failures, losses), Plan: &r.result.Plan})
		r.setStatus(StateDone, "")
		return r.result, nil
	}
	var gaveUp *GaveUp
	var lost *DeviceLost
	switch {
	case errors.As(err, &lost) && lost.Decision.Remedy == Relaunch:
		r.setStatus(StateRunning, lost.Decision.Reason)
	case errors.As(err, &lost) && lost.ending:
		r.record(Entry{Kind: KindInterrupted, Text: fmt.Sprintf("%v; no checkpoint written, %s", err, lost.Decision.Hint), Decision: &lost.Decision})
		r.setStatus(StateInterrupted, err.Error())
	case errors.As(err, &lost):
		r.record(Entry{Kind: KindFailed, Text: err.Error(), Decision: &lost.Decision})
		r.setStatus(StateFailed, err.Error())
	case errors.Is(err, ErrInterrupted):
		r.record(Entry{Kind: KindInterrupted, Text: fmt.Sprintf("interrupted after step %d of %d, checkpoint written", r.step, r.o.Steps)})
		r.setStatus(StateInterrupted, err.Error())
	case ctx.Err() != nil && errors.Is(err, ctx.Err()):
		r.record(Entry{Kind: KindInterrupted, Text: fmt.Sprintf("%v; no checkpoint written, the next attempt starts from step %d", err, max(0, r.saved))})
		r.setStatus(StateInterrupted, err.Error())
	case errors.As(err, &gaveUp):
		r.record(Entry{Kind: KindFailed, Text: fmt.Sprintf("gave up in step %d; what would help: %s", gaveUp.Step, gaveUp.Decision.Hint), Verdict: gaveUp.Decision.Verdict, Decision: &gaveUp.Decision})
		r.setStatus(StateFailed, err.Error())
	default:
		r.record(Entry{Kind: KindFailed, Text: err.Error()})
		r.setStatus(StateFailed, err.Error())
	}
	return r.result, err
}

// doneText counts the failures of the whole run: what an earlier, killed process
// survived is as much a part of it.
func doneText(steps, failures, losses int) string {
	text := fmt.Sprintf("done: %d steps", steps)
	switch {
	case failures == 1:
		text += ", 1 failure of memory survived"
	case failures > 1:
		text += fmt.Sprintf(", %d failures of memory survived", failures)
	}
	if losses > 0 {
		text += fmt.Sprintf(", device lost %d×", losses)
	}
	return text
}
