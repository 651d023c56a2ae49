package runs

import (
	"fmt"

	"headroom/memory"
)

// Way is how a worker has survived a failure inside a process.
type Way string

// The ways.
const (
	WayPieces  Way = "pieces"   // the batch was run in pieces
	WayCall    Way = "call"     // the same call was made again
	WayHost    Way = "host"     // the same call was made again, with saved tensors in host memory
	WayTwoPass Way = "two-pass" // the results were computed in pieces, and again in backward: nothing was known about the loss
	WaySpill   Way = "spill"    // the same was done again, with memory of the host for what does not fit on the GPU
	WayBatch   Way = "batch"    // the whole batch was run again
	WayStep    Way = "step"     // the optimizer's step was made again
)

// InPlace says how a failure was survived inside a process. Way is "" if it is only known that
// the step was finished.
type InPlace struct {
	Way    Way    `json:"way,omitempty"`
	Rows   int    `json:"rows,omitempty"`   // of the whole batch, if it was run in pieces
	Pieces int    `json:"pieces,omitempty"` // in which it was run
	Why    string `json:"why,omitempty"`    // why the batch was not run in pieces
}

// String says what was done, and why.
func (p InPlace) String() string {
	text := "the step was finished"
	switch p.Way {
	case WayPieces:
		text = fmt.Sprintf("%d rows in %d pieces", p.Rows, p.Pieces)
	case WayTwoPass:
		text = fmt.Sprintf("%d rows in %d pieces, each computed twice", p.Rows, p.Pieces)
	case WayCall:
		text = "the same call again"
	case WayHost:
		text = "the same call again, with saved tensors on the host"
	case WaySpill:
		text = "the same again, with memory of the host for what does not fit on the GPU"
	case WayBatch:
		text = "the whole batch again"
	case WayStep:
		text = "the optimizer's step again"
	}
	if p.Why != "" {
		text += " (" + p.Why + ")"
	}
	return text
}

// Refusal says why a worker left a failure to the command's own code.
type Refusal struct {
	Code string `json:"code,omitempty"` // the kind of reason, as in failure.py; "" if it has no name
	Why  string `json:"why"`
}

// Attached describes a process to which a worker is attached.
type Attached struct {
	Python  string `json:"python"` // its version
	PID     int    `json:"pid"`
	Torch   string `json:"torch"` // its version; "none" if it has not been imported
	Mode    string `json:"mode"`
	Rank    int    `json:"rank,omitempty"`
	World   int    `json:"world,omitempty"`
	Watches string `json:"watches,omitempty"` // why failures are only watched; "" if they are recovered from
}

// String says to what the worker is attached.
func (a Attached) String() string {
	text := fmt.Sprintf("attached to python %s (pid %d, torch %s, %s)", a.Python, a.PID, a.Torch, a.Mode)
	if a.World > 1 {
		text += fmt.Sprintf(", rank %d of %d", a.Rank, a.World)
	}
	if a.Watches != "" {
		text += ", only watching: " + a.Watches
	}
	return text
}

// Wrong says what ran out of memory, and at which line of the user's code. It is the whole text of
// an entry that does not have this as fields, such as one that an earlier version wrote.
func (e Entry) Wrong() string {
	if !e.hasFacts() {
		return e.Text
	}
	return e.OOM.Error() + e.line()
}

// Details is what [Entry.Wrong] says after "out of memory".
func (e Entry) Details() string {
	if !e.hasFacts() {
		return e.Text
	}
	return e.OOM.Details() + e.line()
}

// hasFacts reports whether an entry about a failure inside a process has more than its text.
func (e Entry) hasFacts() bool { return e.OOM != nil && (e.InPlace != nil || e.Refusal != nil) }

func (e Entry) line() string {
	if e.Where == "" {
		return ""
	}
	return " (" + e.Where + ")"
}

// Left says why a failure was left to the command's own code; "" for any other entry.
func (e Entry) Left() string {
	if e.Refusal == nil {
		return ""
	}
	return "left to the command's own code: " + e.Refusal.Why
}

// Done says what was done about a failure that was survived in place, and its cause where that is
// not the batch. It is "" for any other entry.
func (e Entry) Done() string {
	if e.InPlace == nil {
		return ""
	}
	text := e.InPlace.String()
	if v := e.Verdict; v != nil && v.Cause != memory.Batch && v.Cause != memory.Model && v.Cause != memory.Unknown {
		text += "; " + v.Why
	}
	return text
}

// Told returns e with the text that its other fields make: for a person who reads the journal
// itself.
func (e Entry) Told() Entry {
	switch {
	case e.InPlace != nil:
		e.Text = e.Wrong() + "; survived in place: " + e.Done()
	case e.Refusal != nil:
		e.Text = e.Wrong() + "; " + e.Left()
	case e.Attached != nil:
		e.Text = e.Attached.String()
	case e.Holder != nil:
		e.Text = e.Holder.String()
	case e.Breakdown != nil:
		e.Text = e.Breakdown.String()
	}
	return e
}
