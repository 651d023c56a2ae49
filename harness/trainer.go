package harness

import (
	"context"
	"fmt"
	"io"

	"headroom/memory"
	"headroom/recovery"
	"headroom/runs"
)

// Trainer makes optimizer steps on one device. [Run] calls it from one
// goroutine and never two methods at once.
//
// Its position (how many steps were made, which samples come next) is part of
// its state: Step advances it, Save and Load carry it.
type Trainer interface {
	// Step makes one optimizer step, cut as p says. It is atomic: after any
	// error, *memory.OutOfMemoryError above all, weights, optimizer state and
	// position are what they were, and the next Step sees the same samples.
	// An out-of-memory failure is a *memory.OutOfMemoryError with Phase and Micro set;
	// a loss or gradient that is NaN or infinite is a *NotFiniteError.
	Step(ctx context.Context, p recovery.Plan) (runs.StepReport, error)
	// Probe empties the cache, runs the forward and backward pass of one
	// micro-batch of the largest samples there can be, with optimizer state in
	// place, and discards the result. Stats.Peak is the peak of that
	// micro-batch.
	Probe(ctx context.Context, micro int) (memory.Stats, error)
	// EmptyCache gives unused memory back to the device and says how much.
	EmptyCache() (memory.Bytes, error)
	// Stats is the state of the device's memory now.
	Stats() memory.Stats
	// Save writes everything that a later run needs to continue bit for bit.
	Save(w io.Writer) error
	// Load reads what Save wrote. Another model's state gives a *MismatchError
	// and leaves the trainer unchanged.
	Load(r io.Reader) error
	// Close gives the device's memory back.
	Close() error
}

// Recomputer is a [Trainer] that can trade time for memory by recomputing
// activations in the backward pass. The results do not change.
type Recomputer interface {
	SetRecompute(on bool)
}

// NotFiniteError is a loss or gradient norm that is NaN or infinite. It is never
// taken for an out-of-memory failure.
type NotFiniteError struct {
	Step  int     // the step that was being made
	What  string  // "loss" or "gradient norm"
	Value float64 // NaN or ±Inf
}

func (e *NotFiniteError) Error() string {
	return fmt.Sprintf("step %d: the %s is %v", e.Step, e.What, e.Value)
}

// MismatchError is saved state that belongs to another model or configuration.
type MismatchError struct {
	Key  string // what differs, such as "model.width"
	Have string // in the run
	Want string // in the saved state
}

func (e *MismatchError) Error() string {
	return fmt.Sprintf("the checkpoint was made with %s: %s, but the run has %s", e.Key, e.Want, e.Have)
}
