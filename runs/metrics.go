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

// StepReport describes one finished optimizer step.
type StepReport struct {
	Step     int          `json:"step"`              // optimizer steps made, this one included
	First    int64        `json:"first"`             // position of its first sample in the run's stream of samples
	Samples  int          `json:"samples"`           // samples in the step, over all ranks
	Tokens   int          `json:"tokens,omitempty"`  // targets that counted in the loss
	Loss     float64      `json:"loss"`              // mean over those targets
	GradNorm float64      `json:"grad_norm"`         // before clipping
	LR       float64      `json:"lr"`                // learning rate used
	Splits   []int        `json:"splits"`            // micro-batches as run, in order
	Memory   memory.Stats `json:"memory"`            // after the step; Peak is the step's
	Seconds  float64      `json:"seconds,omitempty"` // how long the step took; filled in by package harness
}

// ProcessStep is an optimizer step that a worker has seen in a process of a wrapped
// command. Not all steps are recorded. Each process of each attempt counts its own
// steps.
type ProcessStep struct {
	Time    time.Time    `json:"time"`
	Attempt int          `json:"attempt"`
	PID     int          `json:"pid"`
	Rank    int          `json:"rank,omitempty"`   // among World ranks
	World   int          `json:"world,omitempty"`  // ranks that train together; 0 for a process that trains alone
	Made    int          `json:"made"`             // optimizer steps of this process, this one included
	Rows    int          `json:"rows,omitempty"`   // rows in the newest batch; 0 if that was not recorded
	Pieces  int          `json:"pieces,omitempty"` // number of pieces in which these rows were run
	Seconds float64      `json:"seconds"`          // seconds per step since the previous line; 0 if there is no previous line
	Memory  memory.Stats `json:"memory,omitzero"`  // after the step; Peak is the process's so far. Zero without a GPU

	Forward  memory.Bytes `json:"forward,omitempty"`  // allocated at the end of the step's forward pass; 0 if that was not measured
	Backward memory.Bytes `json:"backward,omitempty"` // allocated at the end of the step's backward pass; 0 if that was not measured
	Host     memory.Bytes `json:"host,omitempty"`     // of the host's memory that the step used in place of the GPU's
	Lost     float64      `json:"lost,omitempty"`     // seconds that the process's steps have taken longer for that so far, as far as that is known
}

// AddProcessStep adds s as a line to metrics.jsonl and writes it at once. The run of a
// wrapped command has only such lines in that file.
func (f *Folder) AddProcessStep(s ProcessStep) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return errors.Join(f.metrics.add(s), f.flushMetrics(false))
}

// ReadProcessSteps is [ReadMetrics] for the run of a wrapped command.
func ReadProcessSteps(dir string) ([]ProcessStep, error) {
	return readLines[ProcessStep](filepath.Join(dir, "metrics.jsonl"))
}

// NewestProcessStep returns the newest step recorded in dir. It returns nil if none can
// be read, as in a run that has no wrapped command. It reads only the end of the file.
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
	text, _ := io.ReadAll(io.NewSectionReader(f, max(0, info.Size()-end), end)) // the part that was read may be enough
	for _, line := range slices.Backward(bytes.SplitAfter(text, []byte("\n"))) {
		var s ProcessStep
		if bytes.HasSuffix(line, []byte("\n")) && json.Unmarshal(line, &s) == nil && s.Made > 0 {
			return &s
		}
	}
	return nil
}

// AddStep adds s as a line to metrics.jsonl. Lines wait in memory for a Flush. The oldest
// lines are dropped only if more than 16 MiB are waiting. AddStep returns an error only
// if s contains a number that JSON cannot represent.
func (f *Folder) AddStep(s StepReport) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.metrics.add(s)
}

// Flush writes the lines of the metrics and the journal that wait in memory. It returns
// once the journal's lines are on disk, and, if durable is true, those of the metrics,
// too. After an error nothing is lost: the lines wait for the next Flush.
func (f *Folder) Flush(durable bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return errors.Join(f.flushMetrics(durable), f.writeJournal(true))
}

// FlushMetrics is [Folder.Flush] for the metrics alone.
func (f *Folder) FlushMetrics(durable bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.flushMetrics(durable)
}

func (f *Folder) flushMetrics(durable bool) error {
	return f.kept(func() error { return f.metrics.flush(durable) })
}

// CutMetrics drops the lines of all steps after step. A run that continues from there
// runs those steps again, so the file ends up with every step once.
func (f *Folder) CutMetrics(step int) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	l := f.metrics
	if err := f.flushMetrics(false); err != nil {
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

// ReadMetrics reads the steps of the run in dir, oldest first, each once. It needs no
// lock, so it may be used while the run writes; the steps of the last second or so may
// then still be missing. Lines that cannot be read are left out. The error is then a
// *[TornError], and the steps returned with it are valid. A folder without metrics has
// no steps.
func ReadMetrics(dir string) ([]StepReport, error) {
	return readLines[StepReport](filepath.Join(dir, "metrics.jsonl"))
}
