package memory

import "fmt"

// Phase is the part of the work in which an allocation was asked for.
type Phase string

// The phases of a training job.
const (
	PhaseUnknown    Phase = ""
	PhaseLoad       Phase = "load"       // building the model and its optimizer state
	PhaseForward    Phase = "forward"    // of a micro-batch
	PhaseBackward   Phase = "backward"   // of a micro-batch
	PhaseUpdate     Phase = "update"     // the optimizer's weight update
	PhaseEval       Phase = "eval"       // evaluation, including generation for it
	PhaseGenerate   Phase = "generation" // outside evaluation, as reinforcement learning does in the middle of a step
	PhaseCheckpoint Phase = "checkpoint" // saving
)

// SizedByMicro reports whether a smaller micro-batch changes what the phase
// needs.
func (p Phase) SizedByMicro() bool {
	return p == PhaseForward || p == PhaseBackward || p == PhaseUnknown
}

// OutOfMemoryError is an allocation that failed, with what was true at that moment.
// It is an error; find it with [errors.As].
type OutOfMemoryError struct {
	Requested Bytes `json:"requested"`       // the allocation that failed; 0 if not known, as with a framework's error without numbers
	Stats     Stats `json:"stats"`           // at the failure, after the cache had been emptied
	Phase     Phase `json:"phase,omitempty"` // filled in by the trainer
	Micro     int   `json:"micro,omitempty"` // samples in the micro-batch that failed; 0 outside one

	// Whole is what the phase as a whole has to hold, where the trainer knows; 0
	// if it does not.
	Whole Bytes `json:"whole,omitempty"`
	// Others says in words who else holds memory of the device, such as "python
	// (pid 4711) holds 21.3 GiB"; "" if nobody does or the device cannot tell.
	Others string `json:"others,omitempty"`
	// Assumed says that Stats are what [OutOfMemoryError.Assume] made up; messages leave
	// them out.
	Assumed bool `json:"assumed,omitempty"`
}

// Assume is e with Stats made up to explain it, for memory that reports nothing about itself,
// such as a machine's own under limits that are not known: they say that one byte less than
// was asked for was free. most is the most that the memory can hold; 0 if that is not
// known. If the size of the request is not known, e is returned unchanged.
func (e OutOfMemoryError) Assume(most Bytes) OutOfMemoryError {
	if e.Requested <= 0 {
		return e
	}
	s := &e.Stats
	s.Free = e.Requested - 1
	s.Allocated = max(s.Allocated, most-s.Free)
	s.Reserved = max(s.Reserved, s.Allocated)
	s.Capacity = s.Reserved + s.Free
	e.Assumed = true
	return e
}

// Measured is e without the Stats that [OutOfMemoryError.Assume] made up: what may be recorded and shown.
func (e OutOfMemoryError) Measured() OutOfMemoryError {
	if e.Assumed {
		e.Stats = Stats{}
	}
	return e
}

// Needed is the least that the process would have had to hold to continue: what
// was allocated and what was asked for, or Whole if that is more.
func (e *OutOfMemoryError) Needed() Bytes { return max(e.Whole, e.Stats.Allocated+e.Requested) }

// Shortage is what was needed and what there was, such as "at least 25 GiB of 24 GiB", and
// the difference if rounding could hide it.
func (e *OutOfMemoryError) Shortage() string {
	need, there := e.Needed(), e.Stats.Available()
	switch {
	case e.Assumed:
		return fmt.Sprintf("%v more than is available", e.Requested)
	case e.Requested <= 0 && e.Whole <= e.Stats.Allocated:
		return fmt.Sprintf("more than the %v already held, of %v", need, there)
	}
	return "at least " + Short(need, there)
}

// Short is what was needed and what there was, in words. If the two read the same, it adds
// the difference, and if there was enough, that no free block was large enough.
func Short(need, there Bytes) string {
	text := fmt.Sprintf("%v of %v", need, there)
	switch same := need.String() == there.String(); {
	case need < there && same:
		text += fmt.Sprintf(", %v less than is available, but no free block was large enough", there-need)
	case need <= there:
		text += ", and no free block was large enough"
	case same:
		text += fmt.Sprintf(", %v more than is available", need-there)
	}
	return text
}

// asked is what was asked for, in words.
func (e *OutOfMemoryError) asked() string {
	if e.Requested <= 0 {
		return "an unknown amount asked for"
	}
	return fmt.Sprintf("%v asked for", e.Requested)
}

// left is the text of asked, with how much was free if that was measured.
func (e *OutOfMemoryError) left() string {
	if e.Assumed {
		return e.asked() + ", more than was free"
	}
	return fmt.Sprintf("%s and %v free", e.asked(), e.Stats.Free)
}

func (e *OutOfMemoryError) Error() string {
	where := ""
	if e.Micro > 0 {
		where = fmt.Sprintf(" at micro-batch %d", e.Micro)
	}
	if e.Phase != PhaseUnknown {
		where += fmt.Sprintf(" in %s", e.Phase)
	}
	s := e.Stats
	if s == (Stats{}) || e.Assumed {
		return fmt.Sprintf("out of memory%s: %s", where, e.asked())
	}
	text := fmt.Sprintf("out of memory%s: %s, %v free of %v, %v allocated, %v reserved",
		where, e.asked(), s.Free, s.Capacity, s.Allocated, s.Reserved)
	if s.Foreign > 0 {
		text += fmt.Sprintf(", %v held by other processes", s.Foreign)
	}
	return text
}
