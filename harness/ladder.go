package harness

import (
	"fmt"

	"headroom/memory"
)

// outlierLimit is how many steps may be cut smaller for themselves alone before
// the plan is changed for good: a third one shows that they are no outliers.
const outlierLimit = 3

// outlierWindow is how many quiet steps make earlier outliers forgotten.
const outlierWindow = 100

// ladder is one failure of memory on its way to a remedy.
type ladder struct {
	policy   Policy
	history  History
	evidence memory.Evidence
	verdict  memory.Verdict
}

func (l ladder) climb() Decision {
	switch {
	case l.verdict.Cause == memory.Unknown:
		return l.stop("the cause is unknown", "the evidence is in the journal; nothing was tried, because a remedy for the wrong cause does harm")
	case l.verdict.Cause == memory.Host:
		return l.stop("the machine's own memory ran out", "use fewer data-loader workers, less prefetching and no pinned memory; a smaller micro-batch seldom helps")
	case l.history.grown > 0:
		return l.to(Shrink, l.history.grown, "growing back came too early")
	case !l.history.emptied:
		return l.decide(EmptyCache, fmt.Sprintf("empty the cache and run %s again with micro-batch %d: %s", l.step(), l.micro(), l.verdict.Why))
	}
	switch l.verdict.Cause {
	case memory.Spike, memory.Fragmentation:
		return l.outlier()
	case memory.Leak:
		if d, ok := l.relaunch("frees what has leaked"); ok {
			return d
		}
		return l.smaller()
	case memory.Model:
		return l.last()
	default: // batch, foreign
		return l.smaller()
	}
}

// outlier cuts this step alone, until it has happened too often.
func (l ladder) outlier() Decision {
	small := l.halved()
	switch {
	case l.micro() <= l.policy.minMicro():
		return l.last()
	case l.history.once.Micro > 0 || l.history.outliers < outlierLimit:
		return l.to(ShrinkStep, small, "for this step alone")
	case l.verdict.Cause == memory.Fragmentation && l.relaunchIsDue():
		if d, ok := l.relaunch("gives the allocator a fresh start"); ok {
			return d
		}
	}
	return l.to(Shrink, small, fmt.Sprintf("after %d steps that had to be cut", l.history.outliers))
}

// relaunchIsDue is false while the last relaunch is so recent that it did not
// help.
func (l ladder) relaunchIsDue() bool {
	h := l.history
	return h.relaunches == 0 || h.Finished-h.relaunched >= outlierWindow
}

// smaller chooses a micro-batch for the steps to come: computed where memory by
// micro-batch is known, else by a search.
func (l ladder) smaller() Decision {
	least := l.policy.minMicro()
	if l.micro() <= least {
		return l.last()
	}
	line := l.history.line
	if line.PerSample <= 0 || l.history.guessed {
		d := l.decide(Search, fmt.Sprintf("search for the largest micro-batch below %d that fits: %s", l.micro(), l.verdict.Why))
		d.Plan = l.history.Plan.WithMicro(l.micro() - 1)
		return d
	}
	n := affordable(line, l.policy.budget(l.failure().Stats.Available()))
	if n < least || n >= l.micro() {
		n = l.halved()
	}
	return l.to(Shrink, n, "")
}

// last is reached when the micro-batch can't become smaller.
func (l ladder) last() Decision {
	if l.policy.Recompute && !l.history.recompute && l.failure().Phase.SizedByMicro() {
		return l.decide(Recompute, fmt.Sprintf("compute activations again in the backward pass: %s", l.verdict.Why))
	}
	switch l.verdict.Cause {
	case memory.Foreign:
		if l.history.waits < l.policy.Waits {
			return l.decide(Wait, fmt.Sprintf("wait for other processes to leave (%d of %d): %s", l.history.waits+1, l.policy.Waits, l.verdict.Why))
		}
		return l.stop("other processes hold the memory", "stop them, choose another device, or allow more waiting with memory.waits")
	case memory.Fragmentation, memory.Leak:
		if d, ok := l.relaunch("starts with clean memory"); ok {
			return d
		}
	}
	return l.stop("nothing smaller is left to try", l.helps())
}

// helps names what would make room and has not been used.
func (l ladder) helps() string {
	if !l.policy.Recompute && l.failure().Phase.SizedByMicro() {
		return "allow: [recompute] in the config's memory section, a smaller model, or a device with more memory"
	}
	return "a smaller model, an optimizer with less state, or a device with more memory"
}

func (l ladder) relaunch(why string) (Decision, bool) {
	if l.history.relaunches >= l.policy.Relaunches {
		return Decision{}, false
	}
	return l.decide(Relaunch, fmt.Sprintf("relaunch from a checkpoint of this moment, which %s: %s", why, l.verdict.Why)), true
}

func (l ladder) to(r Remedy, micro int, because string) Decision {
	old, plan := l.history.Running(), l.history.Plan.WithMicro(micro)
	need := fmt.Sprintf("%s needed at least %v of %v", l.step(), l.failure().Needed(), l.failure().Stats.Available())
	if because != "" {
		need = because + ", " + need
	}
	d := l.decide(r, changeReason(old, plan, need))
	d.Plan = plan
	return d
}

func (l ladder) stop(what, hint string) Decision {
	d := l.decide(Stop, fmt.Sprintf("out of memory in %s, %s: %s", l.step(), what, l.verdict.Why))
	d.Hint = hint
	return d
}

func (l ladder) decide(r Remedy, reason string) Decision {
	return Decision{Remedy: r, Plan: l.history.Plan, Verdict: &l.verdict, Reason: reason}
}

func (l ladder) failure() *memory.OutOfMemory { return &l.evidence.Failure }

// micro is the largest micro-batch of the plan that failed.
func (l ladder) micro() int { return l.history.Running().Largest() }

func (l ladder) halved() int { return max(l.policy.minMicro(), l.micro()/2) }

func (l ladder) step() string { return fmt.Sprintf("step %d", l.history.Finished+1) }

// changeReason is the sentence for every change of plan.
func changeReason(old, plan Plan, why string) string {
	return fmt.Sprintf("micro-batch %d → %d: %s; accumulation %d → %d keeps the effective batch at %d",
		old.Largest(), plan.Largest(), why, old.Accumulation(), plan.Accumulation(), plan.Effective)
}
