package wrap

import "fmt"

// Foreseen is why the next smaller micro-batch, from the beginning or from a complete
// checkpoint, would be refused if memory ran out, and what to do about it. Without
// Foreseen, [Wrapped.Prepare] would report this only after memory has run out, when
// nobody is there to read it. It is "" if nothing would be refused, if there is no
// smaller one, or if nothing is known about the command. Nothing is written.
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
		m.Profile.Resume.Patch = nil // it edits files of a checkpoint, and there is none yet
		then := Wrapped{Command: w.Command, Match: &m, Asked: w.Asked, Trust: w.Trust}
		_, later = then.Prepare(smaller, &Saved{Micro: w.Asked.Largest(), checkpoint: &Checkpoint{Path: "checkpoint"}})
	}
	const nothing = "nothing can be made smaller"
	switch {
	case anew == nil && later == nil:
		return ""
	case anew == nil:
		return fmt.Sprintf("if memory runs out after a checkpoint, %s: %v", nothing, later)
	case later == nil || anew.Error() == later.Error():
		return fmt.Sprintf("if memory runs out, %s: %v", nothing, anew)
	}
	return fmt.Sprintf("if memory runs out, %s: %v; after a checkpoint, nothing can be made smaller either: %v", nothing, anew, later)
}
