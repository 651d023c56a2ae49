package recovery

import (
	"errors"
	"fmt"
)

// Plan cuts one optimizer step into micro-batches.
type Plan struct {
	Effective int  `json:"effective"`         // samples per optimizer step over all ranks; constant for a run, unless Common is set
	World     int  `json:"world"`             // data-parallel ranks
	Micro     int  `json:"micro"`             // largest micro-batch per rank, in samples
	Uniform   bool `json:"uniform,omitempty"` // all micro-batches have the same size, as for static shapes or a framework with a single setting
	Common    int  `json:"common,omitempty"`  // for a Uniform plan whose effective batch grows up to Effective: a common divisor of all values that it takes; 0 if the effective batch is constant
	Eval      int  `json:"eval,omitempty"`    // samples in an evaluation batch per rank; 0 if there is none, or none that can be set
}

// Validate returns an error that names everything wrong with p, or nil.
func (p Plan) Validate() error {
	var errs []error
	if p.Effective < 1 {
		errs = append(errs, fmt.Errorf("effective batch %d: must be at least 1", p.Effective))
	}
	if p.World < 1 || p.World > p.Effective {
		errs = append(errs, fmt.Errorf("world size %d: must be from 1 to the effective batch (%d), so that every rank has a sample", p.World, p.Effective))
	}
	if p.Micro < 1 {
		errs = append(errs, fmt.Errorf("micro-batch %d: must be at least 1", p.Micro))
	}
	if p.Eval < 0 {
		errs = append(errs, fmt.Errorf("evaluation batch %d: must be at least 1, or 0 for none", p.Eval))
	}
	if p.Uniform && p.World > 0 && p.Effective%p.World != 0 {
		errs = append(errs, fmt.Errorf("effective batch %d: a uniform plan needs a multiple of the world size %d", p.Effective, p.World))
	}
	if p.Common != 0 && (!p.Uniform || p.Common < 0 || p.World > 0 && p.Common%p.World != 0 || p.Effective%p.Common != 0) {
		errs = append(errs, fmt.Errorf("common divisor %d of the effective batches: must divide %d, be a multiple of the world size %d and belong to a uniform plan", p.Common, p.Effective, p.World))
	}
	return errors.Join(errs...)
}

// Runs reports whether every step can be cut into micro-batches of at most micro
// samples. In a Uniform plan, they must have exactly that many.
func (p Plan) Runs(micro int) bool {
	all := p.Share(0)
	if p.Common > 0 {
		all = p.Common / p.World
	}
	return !p.Uniform || all%micro == 0
}

// Share returns how many samples of a step the given rank runs. Effective is divided
// over the ranks; if it does not divide evenly, the first ranks run one sample more.
func (p Plan) Share(rank int) int {
	share := p.Effective / p.World
	if rank < p.Effective%p.World {
		share++
	}
	return share
}

// Accumulation returns how many micro-batches each rank runs in a step. The number
// is the same on every rank, so that collective operations match. It is 0 in a plan
// whose Micro has not been chosen yet.
func (p Plan) Accumulation() int {
	if p.Micro < 1 {
		return 0
	}
	largest := p.Share(0)
	if !p.Uniform {
		return (largest + p.Micro - 1) / p.Micro
	}
	for micro := min(p.Micro, largest); micro > 1; micro-- {
		if p.Runs(micro) {
			return largest / micro
		}
	}
	return largest
}

// Splits returns the micro-batches of one step on rank, in order. They sum to
// Share(rank) exactly, none is larger than Micro, and they differ by at most one.
// Larger micro-batches come first, so that a step that cannot fit fails early. In a
// Uniform plan they are all equal: the largest size up to Micro for which
// [Plan.Runs] is true. p must be valid.
//
// If Micro is 1 and the shares of the ranks differ, some ranks have fewer samples
// than micro-batches. Their last micro-batch has 0 samples: the rank takes part in
// the collective operations and adds nothing.
func (p Plan) Splits(rank int) []int {
	share, parts := p.Share(rank), p.Accumulation()
	splits := make([]int, parts)
	for i := range splits {
		splits[i] = share / parts
		if i < share%parts {
			splits[i]++
		}
	}
	return splits
}

// WithMicro returns p with another micro-batch.
func (p Plan) WithMicro(micro int) Plan {
	p.Micro = micro
	return p
}

// Largest returns the largest micro-batch that a step of p really runs, or 0 if none has
// been chosen yet.
func (p Plan) Largest() int {
	if p.Micro < 1 {
		return 0
	}
	return p.Splits(0)[0]
}

// Below returns the largest micro-batch smaller than micro that a step of p can run,
// or 0 if there is none. In a Uniform plan that is a divisor of the share, because a
// framework with a single setting uses the same size for all micro-batches.
func (p Plan) Below(micro int) int {
	below := min(micro-1, p.Share(0))
	for below > 1 && !p.Runs(below) {
		below--
	}
	return max(0, below)
}

// Above returns the smallest micro-batch larger than micro that a step of p can run,
// or 0 if there is none.
func (p Plan) Above(micro int) int {
	for above := micro + 1; above <= p.Share(0); above++ {
		if p.Runs(above) {
			return above
		}
	}
	return 0
}

// within returns the largest micro-batch of at most n that a step of p can run. If
// that is below least, it returns the smallest micro-batch that is not below least.
// It returns 0 if no micro-batch reaches least.
func (p Plan) within(n, least int) int {
	found := 0
	for size := p.Below(p.Share(0) + 1); size >= max(1, least); size = p.Below(size) {
		if found = size; size <= n {
			break
		}
	}
	return found
}

// String returns the plan the way people say it: "micro-batch 27 × 3, effective 80".
// Some micro-batches may be one sample smaller than the size named.
func (p Plan) String() string {
	world := ""
	if p.World > 1 {
		world = fmt.Sprintf(" × %d ranks", p.World)
	}
	if p.Common > 0 {
		return fmt.Sprintf("micro-batch %d × up to %d%s, effective up to %d", p.Largest(), p.Accumulation(), world, p.Effective)
	}
	return fmt.Sprintf("micro-batch %d × %d%s, effective %d", p.Largest(), p.Accumulation(), world, p.Effective)
}
