package harness

import (
	"headroom/memory"
	"headroom/search"
)

// Policy is what the user allows.
type Policy struct {
	MinMicro   int     // smallest micro-batch allowed; 0 means 1
	Headroom   float64 // share of the available memory to leave unused when a size is chosen, in [0, 1)
	Recompute  bool    // activations may be computed again to save memory
	Relaunches int     // how often the job may be relaunched to make room, in all
	Waits      int     // how often in a row to wait for other processes before giving up
	GrowAfter  int     // quiet steps before growing back is tried; 0 never grows
}

// Remedy is what to do next.
type Remedy string

// The remedies, mildest first.
const (
	Continue   Remedy = "continue"    // with Decision.Plan; nothing has to be made room for
	EmptyCache Remedy = "empty cache" // and run the same samples with the same plan
	Search     Remedy = "search"      // probe for the largest micro-batch up to Decision.Plan.Micro, then ask again
	ShrinkStep Remedy = "shrink step" // Decision.Plan for this step alone
	Shrink     Remedy = "shrink"      // Decision.Plan from now on
	Grow       Remedy = "grow"        // Decision.Plan from now on: larger
	Recompute  Remedy = "recompute"   // activations again in the backward pass, from now on
	Wait       Remedy = "wait"        // for other processes, then the same plan
	Relaunch   Remedy = "relaunch"    // a new attempt from a checkpoint of the state as it is; after a Loss a new process, from the newest checkpoint
	Stop       Remedy = "stop"        // Decision.Verdict says why, Decision.Hint what would help
)

// Decision is a remedy and its reason.
type Decision struct {
	Remedy  Remedy          `json:"remedy"`
	Plan    Plan            `json:"plan"` // to use next; equal to the current one where the remedy does not change it
	Verdict *memory.Verdict `json:"verdict,omitempty"`
	Reason  string          `json:"reason,omitempty"` // one sentence with its numbers; empty where there is nothing to tell
	Hint    string          `json:"hint,omitempty"`   // what the user could do, when stopping
}

// Event is something that happened in a run. Exactly one field is set.
type Event struct {
	OOM    *memory.Evidence // a step ran out of memory and has been put back
	Step   *StepReport      // a step was finished
	Search *Searched        // a search has ended: one that Decide asked for, or the first one of a run
	Lost   *Loss            // the device is gone, and with it what was not saved
}

// Searched is the end of a search.
type Searched struct {
	Result search.Result
	Err    error        // search.ErrNothingFits, or nil
	Stats  memory.Stats // when it began
}

// Decide is the only place that chooses a remedy. It is pure: it reads no
// clock, starts nothing and logs nothing; the same arguments give the same
// decision. The caller carries the decision out and keeps the history up to
// date with [History.Apply].
//
// For a step that ran out of memory it climbs a ladder, each rung for a stated
// reason: empty the cache → smaller for this step (an outlier) → smaller from
// now on → recompute, if allowed → relaunch or wait, if allowed → stop. Between
// two finished steps it answers with finitely many remedies whatever happens:
// the cache is emptied once, every smaller plan is strictly smaller, recompute
// is switched on once, waits and relaunches are counted.
func Decide(p Policy, h History, e Event) Decision {
	switch {
	case e.OOM != nil:
		return ladder{p, h, *e.OOM, memory.Diagnose(*e.OOM)}.climb()
	case e.Search != nil:
		return afterSearch(p, h, *e.Search)
	case e.Step != nil:
		return grow(p, h, *e.Step)
	case e.Lost != nil:
		return afterLoss(h, *e.Lost)
	}
	return Decision{Remedy: Continue, Plan: h.Plan}
}

func (p Policy) minMicro() int { return max(1, p.MinMicro) }

// budget is what a plan may use of what is available.
func (p Policy) budget(available memory.Bytes) float64 {
	return (1 - p.Headroom) * float64(available)
}
