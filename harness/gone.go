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

// DeviceGoneError is returned when the trainer's device was lost. Nothing more can be done with the
// device in this process.
//
// If Decision.Remedy is [recovery.Exec], a new process should continue with the same folder. If it
// is [recovery.Stop], that is for one of three reasons: new processes have already been tried; the
// run had been asked to stop (the error then wraps [ErrInterrupted] or the context's error); or the
// journal cannot be written.
type DeviceGoneError struct {
	Decision recovery.Decision
	Err      error // the trainer's error

	ending bool // the run had been asked to stop
}

func (e *DeviceGoneError) Error() string { return e.Decision.Reason }

// Unwrap returns the trainer's error and, if the run had been asked to stop, the reason for
// that.
func (e *DeviceGoneError) Unwrap() error { return e.Err }

// faultPatience is how long to wait for the driver to report why a device is gone. The driver
// reports faults separately from the errors of its calls.
const faultPatience = 300 * time.Millisecond

// isGone reports whether err means that the device is gone.
func (l *loop) isGone(err error) bool {
	return err != nil && l.do.Gone != nil && l.do.Gone(err)
}

// gone ends the run in this process after err showed that the device was lost. It honours a
// request to stop, even one that arrives while it waits for the driver's report.
func (l *loop) gone(ctx context.Context, err error) error {
	why := onLine(err)
	if broken := (*CheckpointError)(nil); errors.As(err, &broken) { // that error's text gives advice about disks
		why = fmt.Sprintf("save checkpoint of step %d: %s", broken.Step, onLine(broken.Err))
	}
	l.awaitFaults()
	ending := l.wanted(ctx)
	d, failed := l.session.Handle(recovery.Event{Gone: &recovery.DeviceGone{Why: why, Ending: ending != nil}}, 0)
	return &DeviceGoneError{Decision: d, Err: errors.Join(ending, err, failed), ending: ending != nil}
}

// onLine returns the text of err on one line, without repetitions. A dead device context answers
// every call with the same error, and cleaning up collects several copies of it.
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

// awaitFaults records what the driver reports about a device that is gone. If there is no report
// yet, it waits for one.
func (l *loop) awaitFaults() {
	if l.observer == nil || l.recordFaults() {
		return
	}
	if err := l.do.Sleep(l.patient, faultPatience); err != nil {
		l.session.logger().Debug("the wait for device faults was cut short", zap.Error(err))
	}
	l.recordFaults()
}
