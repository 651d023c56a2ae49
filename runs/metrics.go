package runs

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"headroom/memory"
)

// StepReport is one finished optimizer step.
type StepReport struct {
	Step     int          `json:"step"`              // optimizer steps made, this one included
	First    int64        `json:"first"`             // position of its first sample in the run's stream of samples
	Samples  int          `json:"samples"`           // samples that went into it, over all ranks
	Tokens   int          `json:"tokens,omitempty"`  // targets that counted
	Loss     float64      `json:"loss"`              // mean over those targets
	GradNorm float64      `json:"grad_norm"`         // before clipping
	LR       float64      `json:"lr"`                // learning rate used
	Splits   []int        `json:"splits"`            // micro-batches as run, in order
	Memory   memory.Stats `json:"memory"`            // after the step; Peak is the step's
	Seconds  float64      `json:"seconds,omitempty"` // that the step took; filled in by the harness
}

// ProcessStep is one of the optimizer steps that a worker has seen in a process of a
// wrapped command; not all are recorded. Every attempt and every process counts its own.
type ProcessStep struct {
	Time    time.Time    `json:"time"`
	Attempt int          `json:"attempt"`
	PID     int          `json:"pid"`
	Made    int          `json:"made"`             // optimizer steps of this process, this one included
	Rows    int          `json:"rows,omitempty"`   // in its newest batch; 0 if that was not recorded
	Pieces  int          `json:"pieces,omitempty"` // the pieces that these rows were run in
	Seconds float64      `json:"seconds"`          // per step, since the line before; 0 if there was none
	Memory  memory.Stats `json:"memory,omitzero"`  // after the step; Peak is the process's so far. Zero without a GPU

	Forward  memory.Bytes `json:"forward,omitempty"`  // allocated at the end of the step's forward pass; 0 if that was not measured
	Backward memory.Bytes `json:"backward,omitempty"` // at the end of its backward pass
}

// AddProcessStep adds a line to metrics.jsonl, which has only such lines in the run of a
// wrapped command, and writes it.
func (f *Folder) AddProcessStep(s ProcessStep) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return errors.Join(f.metrics.add(s), f.metrics.flush(false))
}

// ReadProcessSteps is ReadMetrics for the run of a wrapped command.
func ReadProcessSteps(dir string) ([]ProcessStep, error) {
	return readLines[ProcessStep](filepath.Join(dir, "metrics.jsonl"))
}

// NewestProcessStep is the newest step recorded in dir, nil if none can be read, as in a run
// that is not a wrapped command's. It reads only the end of the file.
func NewestProcessStep(dir string) *ProcessStep {
	const end = 16 << 10 // a line has about 300 bytes
	f, err := os.Open(filepath.Join(dir, "metrics.jsonl"))
	if err != nil {
		return nil
	}
	defer func() { _ = f.Close() }() // only read
	info, err := f.Stat()
	if err != nil {
		return nil
	}
	text, _ := io.ReadAll(io.NewSectionReader(f, max(0, info.Size()-end), end)) // what was read may be enough
	for _, line := range slices.Backward(bytes.SplitAfter(text, []byte("\n"))) {
		var s ProcessStep
		if bytes.HasSuffix(line, []byte("\n")) && json.Unmarshal(line, &s) == nil && s.Made > 0 {
			return &s
		}
	}
	return nil
}

// AddStep adds a line to metrics.jsonl. Lines wait in memory for a Flush; only
// when 16 MiB are waiting are the oldest lines dropped. Its only error is a number in
// s that JSON cannot hold.
func (f *Folder) AddStep(s StepReport) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.metrics.add(s)
}

// Flush writes the lines that wait in memory, of metrics and journal. With
// durable it returns when they have reached the disk, as entries of the journal
// always do. After an error nothing is lost: the lines wait for the next Flush.
func (f *Folder) Flush(durable bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return errors.Join(f.metrics.flush(durable), f.writeJournal(true))
}

// FlushMetrics is Flush for the metrics alone.
func (f *Folder) FlushMetrics(durable bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.metrics.flush(durable)
}

// CutMetrics drops the lines of all steps after step: a run that continues from
// there makes those steps again, so that the file has every step once.
func (f *Folder) CutMetrics(step int) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	l := f.metrics
	if err := l.flush(false); err != nil {
		return err
	}
	keep := int64(0)
	err := eachLine(l.path, func(_ int, line []byte, _ bool) bool {
		var s struct{ Step int }
		if json.Unmarshal(line, &s) == nil && s.Step > step {
			return false
		}
		keep += int64(len(line))
		return true
	})
	if err != nil || keep >= l.size {
		return err
	}
	if err := l.disk.Truncate(l.path, keep); err != nil {
		return err
	}
	l.size, l.synced = keep, false
	return nil
}

// ReadMetrics reads the steps of the run in dir, oldest first, each once. It
// needs no lock, so it may be used while the run writes; the newest second or
// so may still be missing then. Lines that cannot be read are left out; the
// error is then a *[TornError] and the steps are valid all the same. A folder
// without metrics has no steps.
func ReadMetrics(dir string) ([]StepReport, error) {
	return readLines[StepReport](filepath.Join(dir, "metrics.jsonl"))
}
