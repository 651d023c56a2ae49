package memory

import (
	"fmt"
	"strings"
)

// Phase is the part of the work in which an allocation was requested.
type Phase string

// The phases of a training job.
const (
	PhaseUnknown    Phase = ""
	PhaseLoad       Phase = "load"       // building the model and its optimizer state
	PhaseForward    Phase = "forward"    // of a micro-batch
	PhaseBackward   Phase = "backward"   // of a micro-batch
	PhaseUpdate     Phase = "update"     // the optimizer's weight update
	PhaseEval       Phase = "eval"       // evaluation, including generation for it
	PhaseGenerate   Phase = "generation" // generation outside evaluation, such as in the middle of a step of reinforcement learning
	PhaseCheckpoint Phase = "checkpoint" // saving a checkpoint
)

// SizedByMicro reports whether a smaller micro-batch can reduce what the phase needs. It
// returns true for an unknown phase.
func (p Phase) SizedByMicro() bool {
	return p == PhaseForward || p == PhaseBackward || p == PhaseUnknown
}

// OutOfMemoryError is a failed allocation and the state of the memory at that moment.
// Use [errors.As] to find it in an error.
type OutOfMemoryError struct {
	Requested Bytes `json:"requested"`       // size of the allocation that failed; 0 if not known, as with a framework's error without numbers
	Stats     Stats `json:"stats"`           // at the failure, after the cache had been emptied
	Phase     Phase `json:"phase,omitempty"` // filled in by the trainer
	Micro     int   `json:"micro,omitempty"` // samples in the micro-batch that failed; 0 outside one

	// Whole is how much memory the whole phase has to hold; 0 if the trainer does not
	// know that.
	Whole Bytes `json:"whole,omitempty"`
	// Others names the other processes that hold memory of the device, such as
	// "python (pid 4711) holds 21.3 GiB". It is "" if there are none, or if the
	// device cannot name them.
	Others string `json:"others,omitempty"`
	// Fragments says how the free memory of the process's allocator lies; nil if that is not known.
	Fragments *Fragments `json:"fragments,omitempty"`
	// Assumed is true if Stats were made up by [OutOfMemoryError.Assume]. Messages
	// then leave them out.
	Assumed bool `json:"assumed,omitempty"`
}

// Assume returns e with made-up Stats that explain the failure: they say that one
// byte less than the request was free. It is for memory of which nothing can be
// measured, such as a machine's own memory under limits that are not known. The
// argument most is the capacity of the memory, or 0 if that is not known. If the size
// of the request is not known, Assume returns e unchanged.
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

// Measured returns e without its Stats if they were made up by
// [OutOfMemoryError.Assume]. A failure may be recorded and shown only in this form.
func (e OutOfMemoryError) Measured() OutOfMemoryError {
	if e.Assumed {
		e.Stats = Stats{}
	}
	return e
}

// Needed returns the least memory that the process would have had to hold to
// continue: the allocated plus the requested bytes, or Whole if that is more.
func (e *OutOfMemoryError) Needed() Bytes { return max(e.Whole, e.Stats.Allocated+e.Requested) }

// Shortage describes how much memory was needed in all, and how much there was: "at least
// 25 GiB with 24 GiB available". Amounts that are not known are left out.
func (e *OutOfMemoryError) Shortage() string {
	need, there := e.Needed(), e.Stats.Available()
	switch {
	case e.Assumed:
		return fmt.Sprintf("at least %v more than is available", e.Requested)
	case e.Requested <= 0 && e.Whole <= e.Stats.Allocated:
		return fmt.Sprintf("more than the %v already held, with %v available", need, there)
	}
	return "at least " + Short(need, there)
}

// Short describes how much memory was needed and how much there was: "25 GiB with 24 GiB
// available". If the two amounts read the same, it gives the difference. If there was
// enough memory, it adds that no free block was large enough.
func Short(need, there Bytes) string {
	switch {
	case need <= there:
		return fmt.Sprintf("%v with %v available, but no free block was large enough", need, there)
	case need.String() == there.String():
		return fmt.Sprintf("%v, %v more than is available", need, need-there)
	}
	return fmt.Sprintf("%v with %v available", need, there)
}

// asked describes the size of the request in words.
func (e *OutOfMemoryError) asked() string {
	if e.Requested <= 0 {
		return "an unknown amount asked for"
	}
	return fmt.Sprintf("%v asked for", e.Requested)
}

// Lack says how much was asked for, where, and how much was free: "2 MiB asked for at
// micro-batch 32 in forward, 964 KiB free". It adds what the two amounts do not show.
func (e *OutOfMemoryError) Lack() string {
	text := strings.TrimSpace(e.asked() + " " + e.place())
	if e.Assumed {
		return text + ", more than was free"
	}
	s := e.Stats
	text += fmt.Sprintf(", %v free", s.Free)
	switch {
	case e.Requested > 0 && s.Allocated+e.Requested <= s.Available():
		text += fmt.Sprintf(" and %v reserved but unused, in blocks that are too small", s.Reserved-s.Allocated)
	case e.Requested > s.Free && e.Requested.String() == s.Free.String():
		text += fmt.Sprintf(", %v too few", e.Requested-s.Free)
	}
	return text
}

func (e *OutOfMemoryError) Error() string {
	separator := " "
	if e.place() == "" {
		separator = ": "
	}
	return "out of memory" + separator + e.Details()
}

// place says in which micro-batch and phase memory ran out; "" if neither is known.
func (e *OutOfMemoryError) place() string {
	text := ""
	if e.Micro > 0 {
		text = fmt.Sprintf("at micro-batch %d", e.Micro)
	}
	if e.Phase != PhaseUnknown {
		text = strings.TrimSpace(fmt.Sprintf("%s in %s", text, e.Phase))
	}
	return text
}

// Details says where memory ran out, how much was asked for, and how much there was:
// everything that Error says after "out of memory".
func (e *OutOfMemoryError) Details() string {
	text := e.asked()
	if place := e.place(); place != "" {
		text = place + ": " + text
	}
	s := e.Stats
	if s == (Stats{}) || e.Assumed {
		return text
	}
	text += fmt.Sprintf(", %v free of %v", s.Free, s.Capacity)
	if s.Allocated > 0 || s.Reserved > 0 { // messages of frameworks do not always have these
		text += fmt.Sprintf(", %v allocated, %v reserved", s.Allocated, s.Reserved)
	}
	if s.Foreign > 0 {
		text += fmt.Sprintf(", %v held by other processes", s.Foreign)
	}
	return text
}
