package recovery

import (
	"fmt"
	"strings"
)

// goneLimit is how many times in a row a run continues in a new process after its
// device was lost, with no new checkpoint in between. A device that is lost every
// time is broken.
const goneLimit = 3

// DeviceGone says that the device can no longer be used. Nothing on it could be
// saved.
type DeviceGone struct {
	Why          string   `json:"why"`                     // what the job was doing, and the driver's error
	Reported     []string `json:"reported,omitempty"`      // faults of the device since the newest checkpoint, in the driver's words
	From         int      `json:"from"`                    // step of the newest checkpoint; 0 if there is none
	Before       int      `json:"before"`                  // how many times the device had already been lost since that checkpoint
	Ending       bool     `json:"ending,omitempty"`        // the run had been asked to stop
	JournalFails bool     `json:"journal_fails,omitempty"` // the journal, where losses are counted, cannot be written
}

// afterGone decides what to do after the device was lost. It never tries again in
// the same process, where the device stays unusable. A new process continues from
// the newest checkpoint, up to goneLimit times in a row.
func afterGone(h History, g DeviceGone) Decision {
	reported := ""
	if len(g.Reported) > 0 {
		reported = "; the driver reported: " + strings.Join(g.Reported, ", ")
	}
	decide := func(r Remedy, brief, hint string) Decision {
		return Decision{Remedy: r, Plan: h.Plan, Brief: brief + reported, Reason: brief + ": " + g.Why + reported, Hint: hint}
	}
	continues := fmt.Sprintf("continues from step %d", g.From)
	switch {
	case g.Ending:
		return decide(Stop, "the device was lost while the run was being stopped", "the same command "+continues)
	case g.JournalFails:
		return decide(Stop, "the device was lost, and the job is not restarted because the journal, which records such losses, cannot be written",
			"make room on the journal's disk; the same command then "+continues)
	case g.Before < goneLimit:
		return decide(Exec, fmt.Sprintf("continue in a new process from step %d (restart %d of %d without a new checkpoint)", g.From, g.Before+1, goneLimit), "")
	}
	return decide(Stop, fmt.Sprintf("the device was lost %d times without a new checkpoint in between", g.Before+1),
		"look for Xid errors in dmesg, and for errors and high temperatures in nvidia-smi -q; reset the GPU or restart the machine; the same command then "+continues)
}
