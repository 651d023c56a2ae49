package worker

import (
	"context"
	"errors"
	"fmt"

	"headroom/memory"
)

// Trials are the trials of a training step that a process makes, in mode Find: its first optimizer step
// is over, and it waits to be asked. They may be used by one goroutine at a time.
type Trials struct {
	Rank  int // of the process, among World that train together
	World int

	Rows  int  // rows of the script's own batch
	Times int  // micro-batches in one of its optimizer steps
	Whole bool // its first step was made as a whole: nothing ran out of memory

	Uncut string // why its step cannot be made in pieces, or ""

	Device    string       // "cpu" or "gpu"
	Capacity  memory.Bytes // memory that the process can hold
	Held      memory.Bytes // memory that it holds between steps
	Weights   memory.Bytes
	Gradients memory.Bytes // of all trained weights
	States    memory.Bytes // of the optimizers
	// Beside is the memory that goes off a device's before the process can hold it: its context and libraries on a GPU.
	// On the host it is negative: what headroom takes there comes on top.
	Beside memory.Bytes
	// Together is what the batch takes, and those of its results that the script holds: in however many pieces the step is made.
	Together memory.Bytes
	Batches  Batches      // that its loaders have given
	Full     memory.Bytes // of the optimizers' states, in 32 bits
	Stays    memory.Bytes // of a step's results that the script holds until the next one makes its own
	Keeps    bool         // gradients stay in memory until the next step fills them

	talk     *talk
	outcomes chan message // closed when the process is gone
}

// Trial is the outcome of a step on so many rows.
type Trial struct {
	Rows     int          `json:"rows"`
	Fits     bool         `json:"fits"`
	Peak     memory.Bytes `json:"peak"`            // of forward and backward pass; 0 if the step did not fit
	First    memory.Bytes `json:"first,omitempty"` // as Peak, with nothing left of a step before; 0 if that is not known
	Update   memory.Bytes `json:"update"`          // the peak of the optimizer's step
	Capacity memory.Bytes `json:"capacity"`        // memory that the process could hold afterwards
	Seconds  float64      `json:"seconds"`         // that a micro-batch of these rows takes
	// Within is the memory that the process was allowed to hold, if that was less than there is.
	Within memory.Bytes `json:"within,omitempty"`

	failure memory.OutOfMemoryError
}

// Failure returns the failure of a step that did not fit.
func (t Trial) Failure() *memory.OutOfMemoryError { return &t.failure }

// Failed returns the outcome of a step that did not fit.
func Failed(rows int, failure memory.OutOfMemoryError) Trial {
	return Trial{Rows: rows, failure: failure}
}

// ErrGone means that the process ended during a trial.
var ErrGone = errors.New("the process ended during a trial")

// Try has the process make its step on so many rows. most is the memory that it may hold meanwhile; 0 is as much as there is.
func (t *Trials) Try(ctx context.Context, rows int, most memory.Bytes) (Trial, error) {
	return t.asked(ctx, answer{Type: "try", Rows: rows, Most: most})
}

// Evaluate is as Try, but has the process make the forward passes of its step only, without gradients and in evaluation mode.
func (t *Trials) Evaluate(ctx context.Context, rows int, most memory.Bytes) (Trial, error) {
	return t.asked(ctx, answer{Type: "try", Rows: rows, Most: most, Eval: true})
}

func (t *Trials) asked(ctx context.Context, a answer) (Trial, error) {
	rows, most := a.Rows, a.Most
	t.talk.say(a)
	select {
	case m, open := <-t.outcomes:
		switch {
		case !open:
			return Trial{}, fmt.Errorf("%d rows: %w", rows, ErrGone)
		case m.Type == "cannot" || m.Why != "":
			return Trial{}, fmt.Errorf("%d rows: %s", rows, m.Why)
		}
		trial := m.trial()
		trial.Within = most
		return trial, nil
	case <-ctx.Done():
		return Trial{}, ctx.Err()
	}
}

// trial returns the outcome that m reports.
func (m message) trial() Trial {
	t := Trial{Rows: m.Rows, Fits: m.Fits, Peak: m.Peak, First: m.First, Update: m.Update, Capacity: m.Capacity, Seconds: m.Seconds}
	if !m.Fits && m.Allocated > 0 { // the CPU's allocator says only how much was asked for
		t.failure = m.failure()
	}
	return t
}

// ready keeps the trials of a process that has made its first step.
func (t *talk) ready(m message) {
	t.trials = &Trials{Rank: m.Rank, World: max(1, m.World), Rows: m.Rows, Times: max(1, m.Times), Whole: m.Whole, Uncut: m.Why, Device: m.Device, Capacity: m.Capacity, Held: m.Allocated,
		Weights: m.Weights, Gradients: m.Gradients, States: m.States, Beside: m.Beside, Together: m.Together, Batches: m.Batches, Full: m.Full, Stays: m.Stays, Keeps: m.Keeps, talk: t, outcomes: make(chan message, 1)}
	if look := t.attempt.o.Look; look != nil && m.UUID != "" {
		if seen := look(m.UUID, t.pid, m.Reserved); seen != nil {
			for _, other := range seen.Others {
				t.trials.Beside = max(0, t.trials.Beside-max(0, other.Bytes))
			}
		}
	}
	select {
	case t.attempt.trials <- t.trials:
	default:
	}
}

// outcome passes the outcome of a trial on, or the reason why there can be none.
func (t *talk) outcome(m message) {
	if t.trials == nil {
		t.attempt.check(nil, m.Why)
		return
	}
	select {
	case t.trials.outcomes <- m:
	default: // not asked for
	}
}
