package harness

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"
)

// DeviceLost is returned when the trainer's device was lost. Nothing can be done
// with it in this process. If Decision.Remedy is [Relaunch] a new process is to
// call Run for the same folder; if it is [Stop] that has been tried, or the run
// had been asked to end (the error then wraps [ErrInterrupted] or the context's),
// or the journal cannot be written.
type DeviceLost struct {
	Decision Decision
	Err      error // of the trainer

	ending bool // the run had been asked to end
}

func (e *DeviceLost) Error() string { return e.Decision.Reason }

// Unwrap is the trainer's error.
func (e *DeviceLost) Unwrap() error { return e.Err }

// faultPatience is how long a lost device is given to say why: the driver
// reports faults on a way of its own.
const faultPatience = 300 * time.Millisecond

// isLost tells whether err means that the device is gone.
func (r *runner) isLost(err error) bool {
	return err != nil && r.o.Lost != nil && r.o.Lost(err)
}

// lost is the end of this process's part in the run. Who has asked for an end
// gets it, also while the driver was given time.
func (r *runner) lost(ctx context.Context, err error) error {
	why := onLine(err)
	if broken := (*CheckpointError)(nil); errors.As(err, &broken) { // its advice is about disks
		why = fmt.Sprintf("save checkpoint of step %d: %s", broken.Step, onLine(broken.Err))
	}
	r.awaitFaults()
	r.record(Entry{Kind: KindLost, Text: why})
	t := r.f.troubles()
	ending := r.wanted(ctx)
	d := Decide(r.o.Policy, r.history, Event{Lost: &Loss{Why: why, Reported: t.faults, From: max(0, r.saved), Before: t.losses - 1,
		Ending: ending != nil, Untold: r.journalDown}})
	if d.Remedy == Relaunch { // the end tells of the other
		r.decided(d)
	}
	return &DeviceLost{Decision: d, Err: errors.Join(ending, err), ending: ending != nil}
}

// onLine is err on one line. A dead context answers everything with the same
// error, of which cleaning up collects some.
func onLine(err error) string {
	said := ""
	for line := range strings.Lines(err.Error()) {
		line = strings.TrimSpace(line)
		if !strings.Contains(said, line) {
			said = strings.TrimPrefix(said+"; "+line, "; ")
		}
	}
	return said
}

// awaitFaults records what the driver reports about a loss.
func (r *runner) awaitFaults() {
	if r.watch == nil || r.recordFaults() {
		return
	}
	if err := r.o.Sleep(r.patient, faultPatience); err != nil {
		r.log.Debug("not waited for faults of the device", zap.Error(err))
	}
	r.recordFaults()
}

// faultsNamed bounds what a decision says of faults.
const faultsNamed = 5

// troubles is what became of the device since the run last got on: saved a
// checkpoint, or ended, so that whoever starts it again may have looked at the
// machine. A kill is no end.
type troubles struct {
	losses int
	faults []string // each once
}

func (t *troubles) count(e Entry) {
	switch e.Kind {
	case KindLost:
		t.losses++
	case KindFault:
		if len(t.faults) < faultsNamed && !slices.Contains(t.faults, e.Text) {
			t.faults = append(t.faults, e.Text)
		}
	case KindCheckpoint, KindDone, KindFailed, KindInterrupted:
		*t = troubles{}
	}
}

func (f *Folder) troubles() troubles {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.trouble
}
