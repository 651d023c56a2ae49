package wrap

import "headroom/memory"

// Outcome is why one life of a command ended, as far as its [Exit] shows.
type Outcome struct {
	Kind       Kind       `json:"kind"`
	Confidence Confidence `json:"confidence"`
	Reasons    []string   `json:"reasons"` // sentences about what was seen, the most important first; never empty

	// Evidence is what [memory.Diagnose] reads; nil unless Kind.Memory(). The caller
	// fills in what it alone knows: Failure.Micro, Baseline, MinMicro.
	Evidence *memory.Evidence `json:"evidence,omitempty"`

	Rank   int    `json:"rank"`            // rank that failed first; -1 if not known
	Device int    `json:"device"`          // device, as that rank numbers its devices; -1 if not known
	Error  string `json:"error,omitempty"` // the error that ended it, in its own words, shortened

	// Hopeless says why no smaller batch will help, and what would; "" if one may help.
	Hopeless string `json:"hopeless,omitempty"`
	Hint     string `json:"hint,omitempty"` // what the user could do; "" if there is nothing to say
}

// Kind is what ended a command.
type Kind string

// The kinds of end. Failed is the honest answer where nothing more is known.
const (
	Done              Kind = "done"
	OutOfMemory       Kind = "out of memory"        // of the device
	OutOfHostMemory   Kind = "out of host memory"   // of the machine or of the control group
	OutOfSharedMemory Kind = "out of shared memory" // /dev/shm was full
	Failed            Kind = "failed"               // for another reason, or for an unknown one
	Stopped           Kind = "stopped"              // on request
	Hung              Kind = "hung"                 // it gave no sign of life for too long, and was ended for that
	Leaking           Kind = "leaking"              // its memory would have run out before its next checkpoint, and it was ended for that
	DeviceGone        Kind = "device gone"          // its context is dead: a new process may continue, the same one never can
)

// Memory reports whether memory of some sort ran out.
func (k Kind) Memory() bool {
	return k == OutOfMemory || k == OutOfHostMemory || k == OutOfSharedMemory
}

// Confidence is how far an Outcome's kind can be relied on.
type Confidence string

// The levels of confidence.
const (
	// Certain: an exception's type, a launcher's error file, the kernel's counter of
	// the command's own control group or the exit status says so.
	Certain Confidence = "certain"
	// Likely: the text says so, but something weakens it: no exception carried it,
	// another error followed, or its meaning rests on how little memory was free or allowed.
	Likely Confidence = "likely"
	// Possible: it would explain the end, and so would something else. It is worth
	// reporting, but nothing may be changed because of it.
	Possible Confidence = "possible"
)

// OutOfMemory reports whether memory certainly or likely ran out.
func (o Outcome) OutOfMemory() bool { return o.Kind.Memory() && o.Confidence != Possible }
