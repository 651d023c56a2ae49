package runs

import (
	"fmt"
	"strings"
	"time"

	"headroom/memory"
)

// Reading is the condition of a device at one moment. A value that is not known is nil.
type Reading struct {
	Utilisation    *int          `json:"utilisation,omitempty"`     // per cent of the time during which something ran
	Temperature    *int          `json:"temperature,omitempty"`     // °C
	Used           *memory.Bytes `json:"used,omitempty"`            // by all processes
	Throttled      []string      `json:"throttled,omitempty"`       // reasons why the clocks are held back, in words
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
		parts = append(parts, "clocks held back: "+strings.Join(r.Throttled, ", "))
	}
	if r.UncorrectedECC != nil && *r.UncorrectedECC > 0 {
		parts = append(parts, fmt.Sprintf("uncorrected memory errors: %d", *r.UncorrectedECC))
	}
	if parts == nil {
		return "nothing is known"
	}
	return strings.Join(parts, ", ")
}

// Fault is an error that a device's driver reported of its own accord, such as an Xid
// of an NVIDIA GPU.
type Fault struct {
	Time time.Time `json:"time"` // when it was received
	Code int       `json:"code"`
	Text string    `json:"text"` // the error and its meaning, in words
}
