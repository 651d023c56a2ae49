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
	evidence.Boundary, evidence.Every, evidence.Holder = seen.Boundary, seen.Every, seen.Holder
	o.Evidence, o.Reasons, o.Where = &evidence, append([]string{reason}, o.Reasons...), cmp.Or(where, o.Where)
	o = o.quoting(reason)
	return o.leaked()
}

// Grown returns o together with what a worker inside a process saw to hold memory that grows. It is for
// an attempt that ended for want of memory without a failure that the worker saw with its numbers, as
// in the machine's memory.
func (o Outcome) Grown(holder memory.Holder) Outcome {
	if !o.Kind.Memory() || o.Evidence == nil {
		return o
	}
	evidence := *o.Evidence
	evidence.Holder = &holder
	o.Evidence = &evidence
	return o.leaked()
}

// leaked completes o if its evidence shows a leak: what helps is to keep less, not a smaller batch.
func (o Outcome) leaked() Outcome {
	verdict := memory.Diagnose(*o.Evidence)
	if verdict.Cause != memory.Leak {
		return o
	}
	o.Hopeless, o.Reasons = "", append([]string{verdict.Why}, o.Reasons...)
	if h := o.Evidence.Holder; h != nil && h.Explains(o.Evidence.Failure, o.Evidence.Host) {
		o.Hint = h.Hint()
		return o
	}
	o.Hint = cmp.Or(o.Hint, "keep numbers from step to step: loss.item() or loss.detach() has a value without the graph that made it")
	return o
}
