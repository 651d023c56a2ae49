package exits

import (
	"cmp"

	"headroom/memory"
)

// FromInside returns o together with what a worker inside the process saw: a memory
// failure after which the training made no further step, and the memory allocated
// between steps. where is the line of the user's code that failed; it may be empty.
//
// The worker's numbers come from the device itself, whereas o has only those of an error
// message. If o has no error, the memory failure that the worker saw becomes its reason.
// If the memory leaked, o is not hopeless, whichever phase ran out of memory: a new
// process starts without the leaked memory.
func (o Outcome) FromInside(seen memory.Evidence, where string) Outcome {
	f := seen.Failure
	if f.Stats.Capacity <= 0 || o.Kind != OutOfMemory && o.Kind != Failed {
		return o
	}
	reason := "the worker inside PyTorch saw the failure: " + f.Error() + bracketed(where)
	f.Micro = 0 // the worker counts the rows of one call, not the command's micro-batch
	evidence := memory.Evidence{Failure: f}
	switch {
	case o.Kind == OutOfMemory && o.Evidence != nil:
		evidence = *o.Evidence
		evidence.Failure = f
		if o.Evidence.Failure.Phase != memory.PhaseUnknown {
			evidence.Failure.Phase = o.Evidence.Failure.Phase
		}
	case o.Kind == Failed && o.Error != "":
		return o // the command's own output says what ended it
	case o.Kind == Failed:
		o.Kind, o.Confidence = OutOfMemory, Likely
	}
	o.Gradless = f.Phase == memory.PhaseEval
	evidence.Boundary, evidence.Every = seen.Boundary, seen.Every
	o.Evidence, o.Reasons, o.Where = &evidence, append([]string{reason}, o.Reasons...), cmp.Or(where, o.Where)
	o = o.quoting(reason)
	if verdict := memory.Diagnose(evidence); verdict.Cause == memory.Leak {
		o.Hopeless, o.Reasons = "", append([]string{verdict.Why}, o.Reasons...)
		o.Hint = cmp.Or(o.Hint, "a warning above names what grows; loss.item() or loss.detach() keeps a value without the graph that made it")
	}
	return o
}
