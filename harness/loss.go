package harness

import (
	"fmt"
	"strings"
)

// lossLimit is how often in a row a run goes on in a new process after its
// device was lost, with no new checkpoint between: a device that is lost every
// time is broken.
const lossLimit = 3

// Loss is a device that is gone with everything on it, so that nothing could be
// saved.
type Loss struct {
	Why      string   // what was being done, and the driver's error
	Reported []string // faults of the device since the newest checkpoint, in the driver's words
	From     int      // step of the newest checkpoint; 0 without one
	Before   int      // losses before it since that checkpoint
	Ending   bool     // the run had been asked to end
	Untold   bool     // the journal, in which losses are counted, could not be written
}

// afterLoss never tries again in the process that lost the device: its context
// is dead for good. A new one goes on from the newest checkpoint, a few times.
func afterLoss(h History, l Loss) Decision {
	why := l.Why
	if len(l.Reported) > 0 {
		why += "; the driver reported: " + strings.Join(l.Reported, ", ")
	}
	switch {
	case l.Ending:
		return Decision{Remedy: Stop, Plan: h.Plan,
			Reason: "the device was lost while the run was being stopped: " + why,
			Hint:   fmt.Sprintf("the same command goes on from step %d", l.From)}
	case l.Untold:
		return Decision{Remedy: Stop, Plan: h.Plan,
			Reason: "the device was lost, and not relaunched since the journal, which counts that, cannot be written: " + why,
			Hint:   fmt.Sprintf("make room on that disk; the same command then goes on from step %d", l.From)}
	case l.Before < lossLimit:
		return Decision{Remedy: Relaunch, Plan: h.Plan,
			Reason: fmt.Sprintf("relaunch in a new process from step %d (%d of %d without a new checkpoint): %s", l.From, l.Before+1, lossLimit, why)}
	}
	return Decision{Remedy: Stop, Plan: h.Plan,
		Reason: fmt.Sprintf("the device was lost %d times without a new checkpoint between: %s", l.Before+1, why),
		Hint:   fmt.Sprintf("look for Xid in dmesg, and for errors and temperatures in nvidia-smi -q; reset the GPU or restart the machine, and the same command goes on from step %d", l.From)}
}
