package recovery

import (
	"fmt"

	"headroom/memory"
	"headroom/search"
)

// Policy is what the user allows, together with what the body of the job, which carries
// decisions out, is able to do (see [Able]).
type Policy struct {
	MinMicro   int     // smallest micro-batch allowed; 0 means 1
	Headroom   float64 // share of the available memory to leave unused when a size is chosen, in [0, 1)
	Recompute  bool    // activations may be recomputed to save memory
	Relaunches int     // how many times in all the job may be relaunched to make room; if not 0 and Able.CountSteps is false, it may also be relaunched after each newer checkpoint
	Waits      int     // how many times in a row to wait for other processes before giving up
	GrowAfter  int     // number of steps without a failure or a growth before growing back is tried; 0 means never

	// Host names ways to need less host memory, in the order in which to try them. For a
	// command, these are the fallbacks in its profile that save host memory.
	Host []string

	Able Able
}

// Able is what the body of a job can carry out. The body is a native trainer, a process
// that is watched from inside, or a command that is only started and ended. [Decide] never
// chooses something that the body cannot do. Every body can shrink the plan, wait,
// relaunch and stop; how many times it may relaunch is [Policy].Relaunches.
type Able struct {
	EmptyCache bool // give unused memory back and run the same samples again
	CutStep    bool // run a single step with a smaller micro-batch than the plan's
	Probe      bool // try a micro-batch size, and so search for the largest that fits
	Recompute  bool // recompute activations in the backward pass
	Eval       bool // change the evaluation batch, Plan.Eval
	CountSteps bool // report every optimizer step; if not, progress is seen from checkpoints alone
}

// Remedy is what to do next.
type Remedy string

// The remedies, mildest first.
const (
	Continue   Remedy = "continue"    // go on with Decision.Plan; no memory has to be freed
	EmptyCache Remedy = "empty cache" // empty the cache, then run the same samples with the same plan
	Search     Remedy = "search"      // probe for the largest micro-batch up to Decision.Plan.Micro, then ask again
	ShrinkEval Remedy = "shrink eval" // use Decision.Plan.Eval from now on; the training does not change
	ShrinkStep Remedy = "shrink step" // use Decision.Plan for this step only
	Shrink     Remedy = "shrink"      // use Decision.Plan, which is smaller, from now on
	Grow       Remedy = "grow"        // use Decision.Plan, which is larger, from now on
	Recompute  Remedy = "recompute"   // recompute activations in the backward pass from now on
	EaseHost   Remedy = "ease host"   // apply Decision.Name, an entry of Policy.Host, from now on
	Wait       Remedy = "wait"        // wait for other processes, then try the same plan
	Relaunch   Remedy = "relaunch"    // start a new attempt, from a checkpoint made now, or from the newest one if the process has ended
	Exec       Remedy = "exec"        // start a new process in place of this one, from the newest checkpoint: the device is gone
	Stop       Remedy = "stop"        // end the run; Decision.Verdict says why, Decision.Hint says what would help
)

// Decision is a remedy and its reason.
type Decision struct {
	Remedy  Remedy          `json:"remedy"`
	Plan    Plan            `json:"plan"` // the plan to use next; the current one if the remedy does not change it
	Verdict *memory.Verdict `json:"verdict,omitempty"`
	Name    string          `json:"name,omitempty"`   // the way to need less host memory, for EaseHost
	Reason  string          `json:"reason,omitempty"` // one sentence, with the numbers behind it; empty if there is nothing to say
	Brief   string          `json:"brief,omitempty"`  // Reason without what went wrong, for readers who know that already; may be empty
	Hint    string          `json:"hint,omitempty"`   // what the user could do, when stopping
}

// Event is something that happened in a run. Exactly one field is set.
type Event struct {
	OOM    *memory.Evidence `json:"oom,omitempty"`    // a step ran out of memory and has been undone, or its process has ended
	Load   *memory.Evidence `json:"load,omitempty"`   // memory ran out before the first step of an attempt
	Step   *Progress        `json:"step,omitempty"`   // a step was finished or, if the body does not count steps, a checkpoint was completed
	Search *Searched        `json:"search,omitempty"` // a search has ended: one that Decide asked for, or the first one of a run
	Gone   *DeviceGone      `json:"gone,omitempty"`   // the device is gone, and with it everything that was not saved
	Left   *Left            `json:"left,omitempty"`   // the process was ended just after a checkpoint, before it ran out of memory
}

// Left is a process that was ended on purpose, just after a checkpoint, so that little
// work is lost.
type Left struct {
	Why  string `json:"why"`  // what would have happened if the process had not been ended
	From int    `json:"from"` // step of that checkpoint
}

// Progress says how far the training has got.
type Progress struct {
	Step   int          `json:"step"`   // optimizer steps finished; more than at the last Progress
	Memory memory.Stats `json:"memory"` // after that step; zero if not known
}

// Searched is the result of a search. Its Result.Fits is 0 if nothing fits.
type Searched struct {
	Result search.Result `json:"result"`
	Stats  memory.Stats  `json:"stats"` // the memory when the search began
}

// Decide is the only place that chooses a remedy. It is pure: it reads no clock, starts
// nothing and logs nothing; the same arguments give the same decision. The caller carries
// the decision out and keeps the history up to date with [History.Apply].
//
// For a step that ran out of memory, Decide climbs a ladder, each rung for a stated
// reason: empty the cache → a smaller micro-batch for this step (an outlier) → a smaller
// one from now on → recompute, if allowed → relaunch or wait, if allowed → stop. It leaves
// out rungs that the body cannot carry out. Between two finished steps, the number of
// remedies is finite, whatever happens: the cache is emptied once, every smaller plan is
// strictly smaller, recompute and each way to need less host memory are switched on once,
// and waits and relaunches are counted.
//
// Every decision on an out-of-memory failure carries the verdict it rests on.
func Decide(p Policy, h History, e Event) Decision {
	switch {
	case e.OOM != nil:
		return ladder{p, h, *e.OOM, memory.Diagnose(*e.OOM)}.climb()
	case e.Load != nil:
		return ladder{p, h, *e.Load, memory.Diagnose(*e.Load)}.load()
	case e.Search != nil:
		return afterSearch(p, h, *e.Search)
	case e.Step != nil:
		return grow(p, h, *e.Step)
	case e.Gone != nil:
		return afterGone(h, *e.Gone)
	case e.Left != nil: // does not count towards Policy.Relaunches, because there is always a new checkpoint
		return Decision{Remedy: Relaunch, Plan: h.Plan, Reason: fmt.Sprintf("continue in a new process from step %d: %s", e.Left.From, e.Left.Why)}
	}
	return Decision{Remedy: Continue, Plan: h.Plan}
}

// Least returns the smallest micro-batch allowed, at least 1.
func (p Policy) Least() int { return max(1, p.MinMicro) }

// budget returns how much of the available memory a plan may use, in bytes.
func (p Policy) budget(available memory.Bytes) float64 {
	return (1 - p.Headroom) * float64(available)
}
