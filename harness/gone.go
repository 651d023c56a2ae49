package harness

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"go.uber.org/zap"

	"headroom/recovery"
)

// DeviceGoneError is returned when the trainer's device was lost. Nothing can be
// done with it in this process. If Decision.Remedy is [recovery.Exec], a new process
// should continue with the same folder; if it is [recovery.Stop], new processes have been tried,
// or the run had been asked to stop (the error then wraps [ErrInterrupted] or the
// context's), or the journal cannot be written.
type DeviceGoneError struct {
	Decision recovery.Decision
	Err      error // of the trainer

	ending bool // the run had been asked to stop
}

func (e *DeviceGoneError) Error() string { return e.Decision.Reason }

// Unwrap is the trainer's error.
func (e *DeviceGoneError) Unwrap() error { return e.Err }

// faultPatience is how long to wait to hear why a device is gone: the driver
// reports faults through a channel of its own.
const faultPatience = 300 * time.Millisecond

// isGone reports whether err means that the device is gone.
func (l *loop) isGone(err error) bool {
	return err != nil && l.do.Gone != nil && l.do.Gone(err)
}

// gone is the end of this process's part in the run. A stop request is honoured,
// even one that arrives while waiting for the driver.
func (l *loop) gone(ctx context.Context, err error) error {
	why := onLine(err)
	if broken := (*CheckpointError)(nil); errors.As(err, &broken) { // its advice is about disks
		why = fmt.Sprintf("save checkpoint of step %d: %s", broken.Step, onLine(broken.Err))
	}
	l.awaitFaults()
	ending := l.wanted(ctx)
	d, failed := l.Handle(recovery.Event{Gone: &recovery.DeviceGone{Why: why, Ending: ending != nil}}, 0)
	return &DeviceGoneError{Decision: d, Err: errors.Join(ending, err, failed), ending: ending != nil}
}

// onLine is err on one line. A dead context answers every call with the same
// error, and cleaning up collects several copies.
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

// awaitFaults records what the driver reports about a device that is gone.
func (l *loop) awaitFaults() {
	if l.observer == nil || l.recordFaults() {
		return
	}
	if err := l.do.Sleep(l.patient, faultPatience); err != nil {
		l.log.Debug("the wait for device faults was cut short", zap.Error(err))
	}
	l.recordFaults()
}
