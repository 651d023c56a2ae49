package harness

import (
	"context"
	"fmt"
	"io"

	"headroom/memory"
)

// Trainer makes optimizer steps on one device. [Run] calls it from one
// goroutine and never two methods at once.
//
// Its position — how many steps were made, which samples come next — is part of
// its state: Step advances it, Save and Load carry it.
type Trainer interface {
	// Step makes one optimizer step cut as p says. It is atomic: after any
	// error, *memory.OutOfMemory above all, weights, optimizer state and
	// position are what they were, and the next Step sees the same samples.
	// A failure of memory is a *memory.OutOfMemory with Phase and Micro set;
	// a loss or gradient that is no number is a *NotFinite.
	Step(ctx context.Context, p Plan) (StepReport, error)
	// Probe empties the cache, runs the forward and backward pass of one
	// micro-batch of the largest samples there can be, with optimizer state in
	// place, and forgets it. Stats.Peak is the peak of that micro-batch.
	Probe(ctx context.Context, micro int) (memory.Stats, error)
	// EmptyCache gives unused memory back to the device and says how much.
	EmptyCache() (memory.Bytes, error)
	// Memory says what is true now.
	Memory() memory.Stats
	// Save writes everything that a later run needs to go on bit for bit.
	Save(w io.Writer) error
	// Load reads what Save wrote. Another model's state is a *Mismatch and
	// leaves the trainer as it was.
	Load(r io.Reader) error
	// Close gives the device's memory back.
	Close() error
}

// Recomputer is a [Trainer] that can trade time for memory by computing
// activations again in the backward pass. The results do not change.
type Recomputer interface {
	SetRecompute(on bool)
}

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
	Seconds  float64      `json:"seconds,omitempty"` // filled in by Run
}

// NotFinite is a loss or gradient norm that is NaN or infinite. It is never
// taken for a failure of memory.
type NotFinite struct {
	Step  int     // the step that was being made
	What  string  // "loss" or "gradient norm"
	Value float64 // NaN or ±Inf
}

func (e *NotFinite) Error() string {
	return fmt.Sprintf("step %d: the %s is %v", e.Step, e.What, e.Value)
}

// Mismatch is saved state that belongs to another model or configuration.
type Mismatch struct {
	Key  string // what differs, such as "model.width"
	Have string // in the run
	Want string // in the saved state
}

func (e *Mismatch) Error() string {
	return fmt.Sprintf("the checkpoint was made with %s: %s, the run has %s", e.Key, e.Want, e.Have)
}
