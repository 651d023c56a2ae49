package recovery

import (
	"fmt"

	"headroom/memory"
)

// outlierLimit is how many steps may each get a smaller micro-batch that applies to no other step.
// The next step that needs one changes the plan for good, because that many steps can no longer be
// called outliers.
const outlierLimit = 3

// outlierWindow is the number of steps without a failure after which earlier outliers are
// forgotten.
const outlierWindow = 100

// ladder finds the remedy for one out-of-memory failure.
type ladder struct {
	policy   Policy
	history  History
	evidence memory.Evidence
	verdict  memory.Verdict
}

// climb decides what to do about a step that ran out of memory.
func (l ladder) climb() Decision {
	training := l.failure().Phase != memory.PhaseEval && l.failure().Phase != memory.PhaseGenerate
	switch {
	case l.verdict.Cause == memory.Host:
		return l.easeHost()
	case l.hopeless():
		return l.giveUp()
	case training && l.history.grown > 0:
		return l.to(Shrink, l.history.grown, "after the micro-batch had been raised again too early")
	case l.policy.Able.EmptyCache && !l.history.emptied:
		return l.decide(EmptyCache, fmt.Sprintf("empty the cache and run %s again with micro-batch %d", l.step(), l.micro()))
	case !training:
		return l.evaluation()
	}
	switch l.verdict.Cause {
	case memory.Spike, memory.Fragmentation:
		return l.outlier()
	case memory.Leak:
		if d, ok := l.relaunch("to free what has leaked"); ok {
			return d
		}
		if h := l.evidence.Holder; h != nil {
			return l.stop("a smaller micro-batch would only fail later", h.Hint())
		}
		return l.smaller()
	case memory.Resume:
		return l.resume()
	case memory.Model:
		return l.last()
	default: // batch, foreign
		return l.smaller()
	}
}

// load decides what to do about an attempt whose model could not even be built or loaded.
func (l ladder) load() Decision {
	if l.hopeless() {
		return l.giveUp()
	}
	switch l.verdict.Cause {
	case memory.Host:
		return l.easeHost()
	case memory.Foreign:
		return l.wait()
	case memory.Resume:
		return l.resume()
	}
	return l.stop("nothing that is allowed makes the model smaller", helpModel)
}

// resume decides what to do if resuming from a checkpoint took more memory than training did. It
// first tries the same plan once more if a relaunch is left, because that plan has been seen to
// fit. After that, it depends on when memory ran out. If it ran out while the checkpoint was being
// loaded, resume stops the run. If it ran out later, resume chooses a smaller micro-batch, to make
// room for what the checkpoint left in memory.
func (l ladder) resume() Decision {
	tried := l.history.relaunches > 0 && l.history.relaunched == l.history.Finished
	if !tried {
		if d, ok := l.relaunch("because this plan is known to fit"); ok {
			return d
		}
	}
	if l.failure().Phase == memory.PhaseLoad {
		return l.stop("the checkpoint cannot be loaded", `load it into host memory (map_location="cpu") and free it before the first step; the checkpoint is untouched`)
	}
	return l.smaller()
}

// easeHost chooses the next way to need less host memory, or stops the run if none is left.
func (l ladder) easeHost() Decision {
	if l.history.eased >= len(l.policy.Host) {
		return l.stop("no allowed change is left that would save host memory", "use fewer data-loader workers, less prefetching and no pinned memory; a smaller micro-batch seldom helps")
	}
	name := l.policy.Host[l.history.eased]
	d := l.decide(EaseHost, name+" from now on")
	d.Name = name
	return d
}

// hopeless reports whether the cause is unknown, so that no remedy is known to help.
func (l ladder) hopeless() bool { return l.verdict.Cause == memory.Unknown }

func (l ladder) giveUp() Decision {
	return l.stop("the cause is unknown", "look at the evidence in the journal: nothing was tried, because a remedy for the wrong cause does harm")
}

// evaluation halves the evaluation batch. The training batch does not affect the memory for
// evaluation, and does not change. For generation outside evaluation, neither batch matters, so
// only the last rung is left.
func (l ladder) evaluation() Decision {
	old := l.history.Plan.Eval
	if !l.policy.Able.Eval || old <= 1 || l.failure().Phase != memory.PhaseEval {
		return l.last()
	}
	plan := l.history.Plan
	plan.Eval = old / 2
	return Decision{Remedy: ShrinkEval, Plan: plan, Verdict: &l.verdict,
		Reason: fmt.Sprintf("evaluation batch %d → %d: %s; the training batch does not change", old, plan.Eval, l.verdict.Why)}
}

// outlier chooses a smaller micro-batch for this step alone. If too many steps have needed that,
// it chooses a smaller micro-batch for good.
func (l ladder) outlier() Decision {
	switch {
	case l.smallest():
		return l.last()
	case l.policy.Able.CutStep && (l.history.once.Micro > 0 || l.history.outliers < outlierLimit):
		return l.to(ShrinkStep, l.halved(), "for this step only")
	case l.verdict.Cause == memory.Fragmentation && l.relaunchIsDue():
		if d, ok := l.relaunch("to give the allocator a fresh start"); ok {
			return d
		}
	}
	because := ""
	if l.history.outliers > 0 {
		because = fmt.Sprintf("after %d steps that needed smaller micro-batches", l.history.outliers)
	}
	return l.to(Shrink, l.halved(), because)
}

// relaunchIsDue reports whether a relaunch is worth a try. It returns false if there was a
// relaunch recently, because that relaunch evidently did not help.
func (l ladder) relaunchIsDue() bool {
	h := l.history
	return h.relaunches == 0 || h.Finished-h.relaunched >= outlierWindow
}

// smaller chooses a smaller micro-batch for the steps to come. It computes the size if it is known
// how memory depends on the micro-batch. Otherwise it asks for a search if the body can probe, and
// halves the micro-batch if not.
func (l ladder) smaller() Decision {
	if l.smallest() {
		return l.last()
	}
	if !l.policy.Able.Probe && !l.policy.Able.CutStep { // a try costs a start
		if f := l.history.fixed.with(l.micro(), *l.failure()); f.alike >= fixedLimit {
			return l.stop(fmt.Sprintf("%d micro-batches in a row failed on the same request of %v with as much allocated, so that a smaller one would not help", f.alike+1, f.requested),
				"make what is allocated there smaller: its size does not depend on the micro-batch; or use a device with more memory")
		}
	}
	line, n := l.history.line, l.halved()
	trusted := line.PerSample > 0 && !l.history.guessed
	if !trusted && l.policy.Able.Probe {
		d := l.decide(Search, fmt.Sprintf("search for the largest micro-batch below %d that fits", l.micro()))
		d.Plan = l.history.Plan.WithMicro(l.history.Plan.Below(l.micro()))
		return d
	}
	if trusted {
		computed := affordable(line, l.policy.budget(l.failure().Stats.Available()))
		if computed >= l.policy.Least() && computed < l.micro() {
			n = computed
		}
	}
	return l.to(Shrink, n, "")
}

// last decides what to do when the micro-batch cannot become smaller.
func (l ladder) last() Decision {
	if l.canRecompute() && l.policy.Recompute && !l.history.recompute {
		return l.decide(Recompute, "recompute activations in the backward pass")
	}
	switch l.verdict.Cause {
	case memory.Foreign:
		return l.wait()
	case memory.Fragmentation, memory.Leak:
		if d, ok := l.relaunch("to start with clean memory"); ok {
			return d
		}
	}
	return l.stop("nothing smaller is left to try", l.helps())
}

func (l ladder) canRecompute() bool {
	return l.policy.Able.Recompute && l.failure().Phase.SizedByMicro()
}

// wait decides to wait for other processes to release memory, as many times as the policy
// allows. After that, it stops the run.
func (l ladder) wait() Decision {
	if l.history.waits < l.policy.Waits {
		return l.decide(Wait, fmt.Sprintf("wait for other processes to release memory (wait %d of %d)", l.history.waits+1, l.policy.Waits))
	}
	more := "allow more waiting with memory.waits"
	if l.policy.Waits == 0 {
		more = "allow waiting for them with allow: [wait] in the config's memory section"
	}
	return l.stop("other processes hold the memory", "stop the other processes, choose another device, or "+more)
}

const helpModel = "a smaller model, an optimizer with less state, or a device with more memory"

// helps says in words what would free memory and has not been used yet.
func (l ladder) helps() string {
	switch {
	case l.failure().Phase == memory.PhaseEval:
		return "a smaller evaluation batch, a smaller model, or a device with more memory"
	case l.failure().Phase == memory.PhaseGenerate:
		return "fewer or shorter samples generated at once, a smaller model, or a device with more memory"
	case l.canRecompute() && !l.policy.Recompute:
		return "setting allow: [recompute] in the config's memory section, a smaller model, or a device with more memory"
	}
	return helpModel
}

// relaunch returns a decision to start a new attempt. It returns false if no relaunch is left.
// If the body does not count steps, a relaunch is always left after a newer checkpoint, provided
// that relaunches are allowed at all: a leak may end such a job every few hours of a long night.
func (l ladder) relaunch(why string) (Decision, bool) {
	h := l.history
	anew := !l.policy.Able.CountSteps && h.Finished > h.relaunched && l.policy.Relaunches > 0
	if h.relaunches >= l.policy.Relaunches && !anew {
		return Decision{}, false
	}
	from := "a checkpoint made now"
	if !l.policy.Able.CountSteps {
		from = "the newest checkpoint" // the process has ended
	}
	return l.decide(Relaunch, fmt.Sprintf("relaunch from %s, %s", from, why)), true
}

// to returns a decision that changes the plan to the largest possible micro-batch of at most n or,
// if that is smaller than the policy allows, to the smallest one allowed. because, which may be
// empty, is a reason other than the lack of memory.
func (l ladder) to(r Remedy, n int, because string) Decision {
	old, plan := l.history.Running(), l.history.Plan
	plan.Micro = plan.within(n, l.policy.Least())
	return Decision{Remedy: r, Plan: plan, Verdict: &l.verdict, Reason: changeReason(old, plan, because)}
}

func (l ladder) stop(what, hint string) Decision {
	where := "in " + l.step()
	if l.failure().Phase == memory.PhaseLoad {
		where = "before the first step"
	}
	d := l.decide(Stop, fmt.Sprintf("out of memory %s; %s", where, what))
	d.Hint = hint
	return d
}

// decide returns a decision that leaves the plan as it is. Its reason is brief, and then the verdict,
// unless that says no more than the failure, of which everybody is told first.
func (l ladder) decide(r Remedy, brief string) Decision {
	d := Decision{Remedy: r, Plan: l.history.Plan, Verdict: &l.verdict, Brief: brief, Reason: brief}
	if r == Stop || l.verdict.Cause != memory.Batch {
		d.Reason += ": " + l.verdict.Why
	}
	return d
}

func (l ladder) failure() *memory.OutOfMemoryError { return &l.evidence.Failure }

// micro returns the largest micro-batch of the plan that failed.
func (l ladder) micro() int { return l.history.Running().Largest() }

func (l ladder) smallest() bool { return l.history.Plan.Below(l.micro()) < l.policy.Least() }

func (l ladder) halved() int { return max(l.policy.Least(), l.micro()/2) }

// step says in words which step failed, as precisely as is known.
func (l ladder) step() string {
	switch {
	case l.policy.Able.CountSteps:
		return fmt.Sprintf("step %d", l.history.Finished+1)
	case l.history.Finished > 0:
		return fmt.Sprintf("the training after step %d", l.history.Finished)
	}
	return "the training"
}

// changeReason returns the sentence that gives the reason for a change of plan. why may be empty.
func changeReason(old, plan Plan, why string) string {
	if why != "" {
		why = ": " + why
	}
	return fmt.Sprintf("micro-batch %d → %d%s; accumulation %d → %d keeps the effective batch at %d",
		old.Largest(), plan.Largest(), why, old.Accumulation(), plan.Accumulation(), plan.Effective)
}
