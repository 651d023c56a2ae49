package harness

import (
	"fmt"
	"strings"
	"time"

	"headroom/memory"
)

// Watch sees a run's device from outside the trainer. [Run] calls it from one
// goroutine.
type Watch interface {
	// Read says what is true now, nil if nothing is known.
	Read() *Reading
	// Faults are those that were reported since the last call, oldest first.
	Faults() []Fault
}

// Reading is a device at one moment. What is not known is nil.
type Reading struct {
	Utilisation    *int          `json:"utilisation,omitempty"`     // per cent of the time in which something ran
	Temperature    *int          `json:"temperature,omitempty"`     // °C
	Used           *memory.Bytes `json:"used,omitempty"`            // by all processes
	Throttled      []string      `json:"throttled,omitempty"`       // what holds the clocks back, in words
	UncorrectedECC *int64        `json:"uncorrected_ecc,omitempty"` // memory errors since the driver was loaded
}

func (r Reading) String() string {
	var parts []string
	if r.Utilisation != nil {
		parts = append(parts, fmt.Sprintf("%d %% busy", *r.Utilisation))
	}
	if r.Temperature != nil {
		parts = append(parts, fmt.Sprintf("%d °C", *r.Temperature))
	}
	if r.Used != nil {
		parts = append(parts, fmt.Sprintf("%v used", *r.Used))
	}
	if len(r.Throttled) > 0 {
		parts = append(parts, "held back: "+strings.Join(r.Throttled, ", "))
	}
	if r.UncorrectedECC != nil && *r.UncorrectedECC > 0 {
		parts = append(parts, fmt.Sprintf("uncorrected memory errors: %d", *r.UncorrectedECC))
	}
	if parts == nil {
		return "nothing is known"
	}
	return strings.Join(parts, ", ")
}

// Fault is an error that a device's driver reported by itself, such as an Xid of
// an NVIDIA GPU.
type Fault struct {
	Time time.Time `json:"time"` // when it was received
	Code int       `json:"code"`
	Text string    `json:"text"` // with its meaning
}

// readEvery is how often the device is read: often enough to see it grow hot,
// seldom enough that a night's journal stays short.
const readEvery = 30 * time.Second

// observe records the device's faults, and how it is if it is time to.
func (r *runner) observe(now time.Time) {
	if r.watch == nil {
		return
	}
	r.recordFaults()
	if now.Sub(r.read) >= readEvery {
		r.readDevice(now)
	}
}

// recordFaults tells whether there were any.
func (r *runner) recordFaults() bool {
	faults := r.watch.Faults()
	for _, f := range faults {
		r.record(Entry{Kind: KindFault, Text: f.Text, Fault: &f})
	}
	return len(faults) > 0
}

func (r *runner) readDevice(now time.Time) {
	r.read = now
	if reading := r.watch.Read(); reading != nil {
		r.record(Entry{Kind: KindDevice, Text: reading.String(), Device: reading})
	}
}

// lastLook ends what an attempt records of its device.
func (r *runner) lastLook() {
	if r.watch != nil {
		r.recordFaults()
		r.readDevice(r.o.Now())
	}
}
