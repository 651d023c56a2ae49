package harness

import (
	"time"

	"headroom/runs"
)

// Observer sees a run's device from outside the trainer. [Run] calls it from one
// goroutine.
type Observer interface {
	// Read returns a reading of the device's present condition, nil if nothing is known.
	Read() *runs.Reading
	// Faults returns what was reported since the last call, oldest first.
	Faults() []runs.Fault
}

// readEvery is how often the device is read: often enough to see it get hot,
// rarely enough that a night's journal stays short.
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
		l.Note(runs.Entry{Kind: runs.KindFault, Text: f.Text, Fault: &f})
	}
	return len(faults) > 0
}

func (l *loop) readDevice(now time.Time) {
	l.read = now
	if reading := l.observer.Read(); reading != nil {
		l.Note(runs.Entry{Kind: runs.KindDevice, Text: reading.String(), Device: reading})
	}
}

// lastLook makes an attempt's last records of its device.
func (l *loop) lastLook() {
	if l.observer != nil {
		l.recordFaults()
		l.readDevice(l.o.Now())
	}
}
