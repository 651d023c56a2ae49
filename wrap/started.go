package wrap

import (
	"fmt"
	"strings"

	"headroom/runs"
	"headroom/wrap/checkpoints"
	"headroom/wrap/rewrite"
)

// started records that the command is running, and with its first start what is known about it.
func (w *Wrapped) started(p runs.Process, first bool) {
	w.journal.Commands(p, w.place)
	if !first {
		return
	}
	w.journal.Note(runs.Entry{Kind: runs.KindCommand, Text: w.recognised()})
	if text := w.foreseen(); text != "" {
		w.journal.Note(runs.Entry{Kind: runs.KindWarning, Text: text})
	}
}

// recognised says what the command was recognised as, and where its checkpoints are. If it was
// not recognised, it says why.
func (w *Wrapped) recognised() string {
	if w.Seen == nil || w.Seen.Profile.Name == "" {
		return fmt.Sprint(w.Why)
	}
	text := "recognised as " + w.Seen.Profile.Name
	if w.Seen.Profile.Name == "plain" {
		text = "recognised by its --knob settings"
	}
	if where := checkpoints.Where(w.Seen); where != "" {
		return text + "; checkpoints: " + where
	}
	return text + "; it is not known where its checkpoints are"
}

// changesText lists how a rewritten command differs from the user's.
func changesText(changes []rewrite.Change) string {
	texts := make([]string, len(changes))
	for i, c := range changes {
		switch {
		case c.Old == "":
			texts[i] = fmt.Sprintf("%s %s", c.Where, c.New)
		case c.New == "":
			texts[i] = fmt.Sprintf("no %s", c.Where)
		default:
			texts[i] = fmt.Sprintf("%s %s → %s", c.Where, c.Old, c.New)
		}
	}
	return strings.Join(texts, ", ")
}

// foreseen says why headroom would refuse the next smaller micro-batch if memory ran out,
// and what to do about it. It considers starting from the beginning and resuming from a
// complete checkpoint. [Wrapped.prepare] gives the same reason, but only after memory has
// run out, when the user may no longer be watching. foreseen returns "" if nothing would
// be refused, if there is no smaller micro-batch, or if nothing is known about the
// command. It writes nothing.
func (w *Wrapped) foreseen() string {
	if w.Match == nil {
		return ""
	}
	below := w.Asked.Below(w.Asked.Largest())
	if below == 0 {
		return ""
	}
	smaller := w.Asked.WithMicro(below)
	_, anew := w.prepare(smaller, nil)
	later := anew
	if w.resumes() {
		m := *w.Match
		m.Profile.Resume.Patch = nil // patches edit files of a checkpoint, and there is no checkpoint yet
		then := Wrapped{Line: w.Line, Match: &m, Asked: w.Asked, Trust: w.Trust}
		_, later = then.prepare(smaller, &checkpoint{Micro: w.Asked.Largest(), found: &checkpoints.Checkpoint{Path: "checkpoint"}})
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
