package exits

import (
	"cmp"

	"headroom/memory"
	"headroom/wrap/command"
)

// Outcome is why one attempt of a command ended, as far as its [command.Exit] shows.
type Outcome struct {
	Kind       Kind       `json:"kind"`
	Confidence Confidence `json:"confidence"`
	Reasons    []string   `json:"reasons"` // what was seen, the most important first; never empty

	// Evidence is the input of [memory.Diagnose]; nil unless Kind.Memory(). Only the
	// caller knows Failure.Micro, Baseline and MinMicro, and fills them in.
	Evidence *memory.Evidence `json:"evidence,omitempty"`

	Rank   int    `json:"rank"`            // rank that failed first; -1 if not known
	Device int    `json:"device"`          // device, as that rank numbers its devices; -1 if not known
	Error  string `json:"error,omitempty"` // text of the error that ended the attempt, shortened
	Where  string `json:"where,omitempty"` // the user's line in which memory ran out, as FILE:LINE; "" if not known

	// Gradless says that the worker saw the failure in a call without gradients. That is an
	// evaluation, or a part of a step, such as a teacher: the traceback does not say which.
	Gradless bool `json:"gradless,omitempty"`

	quotes []string // those of Reasons that only quote what Evidence and Where have, too

	// Hopeless says why no smaller batch will help, and what would; "" if one may help.
	Hopeless string `json:"hopeless,omitempty"`
	Hint     string `json:"hint,omitempty"` // what the user could do; may be ""
	// Mixed says how a step's result was seen to depend on which rows are in a batch together.
	// It is "" if no step was seen to.
	Mixed string `json:"mixed,omitempty"`
	// Training lists the processes that have taken optimizer steps and went on running when the
	// command had ended.
	Training []int `json:"training,omitempty"`
}

// Kind is the reason why a command ended.
type Kind string

// The reasons why a command can end.
const (
	Done              Kind = "done"
	OutOfMemory       Kind = "out of memory"        // of the device
	OutOfHostMemory   Kind = "out of host memory"   // of the machine or of the control group
	OutOfSharedMemory Kind = "out of shared memory" // /dev/shm was full
	Failed            Kind = "failed"               // for another reason, or for an unknown one
	Stopped           Kind = "stopped"              // on request
	Hung              Kind = "hung"                 // headroom ended it because it gave no sign of life for too long
	Leaking           Kind = "leaking"              // headroom ended it because memory would have run out before its next checkpoint
	DeviceGone        Kind = "device gone"          // the process can no longer use the device, but a new process may
)

// Memory reports whether any kind of memory ran out.
func (k Kind) Memory() bool {
	return k == OutOfMemory || k == OutOfHostMemory || k == OutOfSharedMemory
}

// Confidence is how far an Outcome's kind can be relied on.
type Confidence string

// The levels of confidence.
const (
	// Certain means that the kind follows from an exception's type, a launcher's error
	// file, the kernel's counter for the command's own control group or the exit status.
	Certain Confidence = "certain"
	// Likely means that the output states the kind, but something weakens that: no
	// exception stated it, another error followed, or the text means a memory failure
	// only if little memory was free or allowed.
	Likely Confidence = "likely"
	// Possible means that the kind would explain the end, but so would another one. It is
	// worth reporting, but headroom changes nothing because of it.
	Possible Confidence = "possible"
)

// OutOfMemory reports whether memory certainly or likely ran out.
func (o Outcome) OutOfMemory() bool { return o.Kind.Memory() && o.Confidence != Possible }

// InHostMemory converts the outcome of a command that used no GPU and ran out of host
// memory: host memory takes the place of the device's memory. It returns any other
// outcome unchanged. most is the most host memory that the command could hold. The
// command is assumed to have held all of that except for the size of the failed request.
// If most or that size is not known, o is returned unchanged, too.
func (o Outcome) InHostMemory(gpus []command.GPU, most memory.Bytes) Outcome {
	if o.Kind != OutOfHostMemory || len(gpus) > 0 || most <= 0 || o.Evidence == nil {
		return o
	}
	f := o.Evidence.Failure
	if f.Requested <= 0 {
		return o
	}
	evidence := *o.Evidence
	evidence.Failure, evidence.Host = f.Assume(most), false
	o.Kind, o.Evidence, o.Hint, o.Hopeless = OutOfMemory, &evidence, "", cmp.Or(o.Hopeless, hopeless(fault{}, evidence.Failure))
	return o
}
