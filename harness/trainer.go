package harness

import (
	"context"
	"fmt"
	"io"

	"headroom/memory"
	"headroom/recovery"
	"headroom/runs"
)

// Trainer runs optimizer steps on one device. [Run] calls it from one goroutine and
// never calls two methods at once.
//
// The position of a trainer (how many steps are finished, which samples come next) is
// part of its state: Step advances it, Save writes it, and Load restores it.
type Trainer interface {
	// Step runs one optimizer step, cut into micro-batches as p says. It is atomic:
	// after any error, running out of memory included, weights, optimizer state and
	// position are what they were, and the next Step gets the same samples. An
	// out-of-memory failure is a *memory.OutOfMemoryError with Phase and Micro set. A
	// loss or gradient norm that is NaN or infinite is a *NotFiniteError.
	Step(ctx context.Context, p recovery.Plan) (runs.StepReport, error)
	// Probe empties the cache and runs the forward and backward pass of one
	// micro-batch, made of the largest possible samples, with optimizer state in
	// place. It discards the result. Stats.Peak is the peak of that micro-batch.
	Probe(ctx context.Context, micro int) (memory.Stats, error)
	// EmptyCache gives unused memory back to the device and returns its amount.
	EmptyCache() (memory.Bytes, error)
	// Stats returns the present state of the device's memory.
	Stats() memory.Stats
	// Save writes everything that a later process needs to continue with
	// bit-identical results.
	Save(w io.Writer) error
	// Load reads what Save wrote. The state of another model gives a *MismatchError
	// and leaves the trainer unchanged.
	Load(r io.Reader) error
	// Close frees the device's memory.
	Close() error
}

// Recomputer is implemented by a [Trainer] that can trade time for memory by
// recomputing activations in the backward pass. The results do not change.
type Recomputer interface {
	SetRecompute(on bool)
}

// NotFiniteError reports a loss, gradient norm or learning rate that is NaN or
// infinite. It is never treated as an out-of-memory failure.
type NotFiniteError struct {
	Step  int     // the step that was running
	What  string  // "loss", "gradient norm" or "learning rate"
	Value float64 // NaN or ±Inf
}

func (e *NotFiniteError) Error() string {
	return fmt.Sprintf("step %d: the %s is %v", e.Step, e.What, e.Value)
}

// MismatchError reports that saved state belongs to another model or configuration.
type MismatchError struct {
	Key  string // what differs, such as "model.width"
	Have string // its value in the run
	Want string // its value in the saved state
}

func (e *MismatchError) Error() string {
	return fmt.Sprintf("the checkpoint was made with %s: %s, but the run has %s", e.Key, e.Want, e.Have)
}
