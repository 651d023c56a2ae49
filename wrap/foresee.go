package wrap

import (
	"fmt"

	"headroom/wrap/checkpoints"
)

// Foreseen says why headroom would refuse the next smaller micro-batch if memory ran out,
// and what to do about it. It considers starting from the beginning and resuming from a
// complete checkpoint. [Wrapped.Prepare] gives the same reason, but only after memory has
// run out, when the user may no longer be watching. Foreseen returns "" if nothing would
// be refused, if there is no smaller micro-batch, or if nothing is known about the
// command. It writes nothing.
func (w *Wrapped) Foreseen() string {
	if w.Match == nil {
		return ""
	}
	below := w.Asked.Below(w.Asked.Largest())
	if below == 0 {
		return ""
	}
	smaller := w.Asked.WithMicro(below)
	_, anew := w.Prepare(smaller, nil)
	later := anew
	if w.Resumes() {
		m := *w.Match
		m.Profile.Resume.Patch = nil // patches edit files of a checkpoint, and there is no checkpoint yet
		then := Wrapped{Command: w.Command, Match: &m, Asked: w.Asked, Trust: w.Trust}
		_, later = then.Prepare(smaller, &Saved{Micro: w.Asked.Largest(), checkpoint: &checkpoints.Checkpoint{Path: "checkpoint"}})
	}
	const nothing = "nothing can be made smaller"
	switch {
	case anew == nil && later == nil:
		return ""
	case anew == nil:
		return fmt.Sprintf("if the command has to start again after a checkpoint, %s: %v", nothing, later)
	case later == nil || anew.Error() == later.Error():
		return fmt.Sprintf("if the command has to start again, %s: %v", nothing, anew)
	}
	return fmt.Sprintf("if the command has to start again, %s, neither before the first checkpoint (%v) nor after it (%v)", nothing, anew, later)
}
