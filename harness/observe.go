package harness

import (
	"time"

	"headroom/runs"
)

// Observer watches a run's device from outside the trainer. [Run] calls it from one
// goroutine.
type Observer interface {
	// Read returns a reading of the device's present condition, or nil if nothing is
	// known.
	Read() *runs.Reading
	// Faults returns the faults reported since the last call, oldest first.
	Faults() []runs.Fault
}

// readEvery is the interval at which the device's condition is read: short enough to see
// the device get hot, long enough to keep a night's journal short.
const readEvery = 30 * time.Second

// observe records the device's faults and, when one is due, a reading of the
// device's condition.
func (l *loop) observe() {
	if l.observer == nil {
		return
	}
	l.recordFaults()
	if now := l.o.Now(); now.Sub(l.read) >= readEvery {
		l.readDevice(now)
	}
}

// recordFaults records the device's new faults and reports whether there were any.
func (l *loop) recordFaults() bool {
	faults := l.observer.Faults()
	for _, f := range faults {
		l.session.Note(runs.Entry{Kind: runs.KindFault, Text: f.Text, Fault: &f})
	}
	return len(faults) > 0
}

func (l *loop) readDevice(now time.Time) {
	l.read = now
	if reading := l.observer.Read(); reading != nil {
		l.session.Note(runs.Entry{Kind: runs.KindDevice, Text: reading.String(), Device: reading})
	}
}

// lastLook records the device's faults and condition at the end of an attempt.
func (l *loop) lastLook() {
	if l.observer != nil {
		l.recordFaults()
		l.readDevice(l.o.Now())
	}
}
