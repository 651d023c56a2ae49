package ui

import (
	"headroom/memory"
	"headroom/recovery"
	"headroom/runs"
)

// Stream is stdout with --json: one object per line, each with a "kind". Entries of
// the journal look the same as in journal.jsonl. A nil stream sends nothing.
type Stream struct {
	UI   *UI
	gone bool // nobody reads any more
}

// StepLine is the line about a step. The step looks the same as in metrics.jsonl.
type StepLine struct {
	Kind string `json:"kind"` // "step"
	runs.StepReport
}

// SqueezeLine says that a process simulated by device.squeeze begins or ends.
type SqueezeLine struct {
	Kind   string       `json:"kind"` // "squeeze"
	Begins bool         `json:"begins"`
	From   int          `json:"from"` // steps
	To     int          `json:"to"`
	Take   memory.Bytes `json:"take"`
}

// ResultLine is the last line of the stream: the outcome of the command.
type ResultLine struct {
	Kind       string        `json:"kind"`   // "result"
	Status     int           `json:"status"` // exit status
	Name       string        `json:"name"`
	Folder     string        `json:"folder"`
	Report     string        `json:"report"`
	Finished   bool          `json:"finished"`
	Steps      int           `json:"steps"`
	Resumed    int           `json:"resumed"`
	Failures   int           `json:"failures"`
	DeviceGone int           `json:"device_gone,omitempty"` // losses of the device, in the whole run
	Plan       recovery.Plan `json:"plan"`
	Error      string        `json:"error,omitempty"`
}

// Send writes v as one line. If the reader has gone, send warns once and writes nothing
// more; the run continues.
func (s *Stream) Send(v any) {
	if s == nil || s.gone {
		return
	}
	if err := s.UI.AnswerJSON(v); err != nil {
		s.gone = true
		s.UI.noReader(err)
	}
}
