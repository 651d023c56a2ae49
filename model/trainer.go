package model

import (
	"fmt"

	"headroom/device"
	"headroom/harness"
	"headroom/memory"
	"headroom/model/data"
)

// Trainer trains one model on one device. It implements [harness.Trainer] and
// [harness.Recomputer]. Like its device, it must be used from one goroutine
// only.
type Trainer struct {
	dev     device.Device
	spec    Spec // with every size and default set
	set     data.Set
	order   data.Order
	net     network
	st      *state
	classes int

	step      int   // optimizer steps completed
	position  int64 // position of the next sample in the run's stream
	recompute bool
	broken    error // why the weights are damaged; nil if they are not
}

var (
	_ harness.Trainer    = (*Trainer)(nil)
	_ harness.Recomputer = (*Trainer)(nil)
)

// New builds the model of spec on dev, with its optimizer state and initial
// weights, to be trained on set. Sizes that spec leaves at 0 are taken from set.
//
// From then on the trainer owns dev, and Close closes it. If New returns an error, dev
// still belongs to the caller, and nothing stays allocated on it. If the device is too
// small, the error is a *memory.OutOfMemoryError with Phase load.
func New(dev device.Device, spec Spec, set data.Set) (*Trainer, error) {
	spec, err := spec.Fit(set.Shape())
	if err != nil {
		return nil, err
	}
	if set.Len() < 1 {
		return nil, fmt.Errorf("the data is empty: it must have at least 1 sample")
	}
	spec.Optimizer = spec.Optimizer.withDefaults()
	net, l := spec.build()
	st, err := newState(dev, l, len(spec.Optimizer.moments()), spec.Mixed)
	if err != nil {
		return nil, err
	}
	st.initialise(dev, spec.Seed)
	if err := dev.Sync(); err != nil {
		st.free(dev)
		return nil, fmt.Errorf("initialise the model: %w", err)
	}
	return &Trainer{
		dev: dev, spec: spec, set: set, net: net, st: st,
		order:   data.Order{Seed: spec.Seed, Len: set.Len()},
		classes: max(spec.Vocab, spec.Classes),
	}, nil
}

// Spec returns the spec that the trainer was built from, with every size and
// default filled in.
func (t *Trainer) Spec() Spec { return t.spec }

// Steps returns the number of optimizer steps completed, including those of a
// loaded checkpoint.
func (t *Trainer) Steps() int { return t.step }

// SetRecompute implements [harness.Recomputer]. With recomputation on, a layer
// keeps only its input and runs its forward pass again in the backward pass.
func (t *Trainer) SetRecompute(on bool) { t.recompute = on }

// EmptyCache implements [harness.Trainer].
func (t *Trainer) EmptyCache() (memory.Bytes, error) { return t.dev.EmptyCache() }

// Stats implements [harness.Trainer].
func (t *Trainer) Stats() memory.Stats { return t.dev.Stats() }

// Close frees the model and closes the device. Closing twice is harmless.
func (t *Trainer) Close() error {
	if t.st == nil {
		return nil
	}
	t.st.free(t.dev)
	t.st = nil
	return t.dev.Close()
}
