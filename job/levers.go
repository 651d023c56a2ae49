package job

import (
	"cmp"
	"slices"

	"headroom/memory"
	"headroom/worker"
)

// Lever is something that would make room for more rows, estimated from what was measured.
type Lever struct {
	Rows  int          `json:"rows"` // about so many more
	What  string       `json:"what"`
	Frees memory.Bytes `json:"frees"` // at most
	Of    string       `json:"of"`    // what that memory is held for now
}

// leastLever is how much a lever has to give, as a share of the rows that fit.
const leastLever = 0.02

// levers returns what would make room for more rows than fit, what gives most first. All of it follows from amounts that were measured:
// what a step's peak is without what the step before has left, how the memory lay in which an allocation failed, and the sizes of what is held.
func levers(trials *worker.Trials, f *FoundRows) []Lever {
	if f.Line.PerSample <= 0 {
		return nil
	}
	var found []Lever
	add := func(frees memory.Bytes, what, of string) {
		if rows := int(float64(frees) / f.Line.PerSample); rows > 0 && float64(rows) >= leastLever*float64(f.Largest) {
			found = append(found, Lever{Rows: rows, What: what, Frees: frees, Of: of})
		}
	}
	for _, t := range f.Tried {
		pieces := t.Failure().Fragments
		switch {
		case t.Fits && t.Rows == f.Largest:
			add(t.Update-t.Peak, "fused=True or foreach=False for the optimizer, whose step then takes less at once", "are what its step takes beyond forward and backward")
			gradients, results := left(trials, t)
			add(gradients, "optimizer.zero_grad(set_to_none=True)", keptGradients)
			add(results, "del what the script holds of a step's results, such as out and loss, before the next step", keptResults)
		case !t.Fits && t.Rows == f.Fails && pieces != nil && !pieces.Expandable:
			add(pieces.Pages-pieces.Freed, "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True", "lay in free pieces when an allocation failed")
		}
	}
	if trials.Device == "gpu" {
		add(trials.Full*3/4, "an optimizer with states of 8 bits, which trains a little differently", "are three quarters of the optimizer's states of 32 bits")
	}
	slices.SortStableFunc(found, func(a, b Lever) int { return cmp.Compare(b.Rows, a.Rows) })
	return found
}

const (
	keptGradients = "are gradients that stay until the next step fills them"
	keptResults   = "are results that stay until the next step makes its own"
)

// left returns how much of a step's peak is what the step before has left: gradients, and results that the script holds.
func left(trials *worker.Trials, t worker.Trial) (gradients, results memory.Bytes) {
	if t.First <= 0 {
		return 0, 0
	}
	both := max(0, t.Peak-t.First)
	if trials.Keeps {
		gradients = min(both, trials.Gradients)
	}
	stays := memory.Bytes(float64(trials.Stays) * float64(t.Rows) / float64(max(1, trials.Rows)))
	return gradients, min(both-gradients, stays)
}
