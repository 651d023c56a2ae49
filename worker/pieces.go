package worker

import (
	"fmt"

	"headroom/harness"
	"headroom/memory"
	"headroom/recovery"
)

// growAfter is the number of steps without a failure after which more rows are run at once.
const growAfter = 200

// Pieces decides how many rows of a step of one process run at once. It applies
// recovery.Decide to a history of its own. In that history, the effective batch is the rows
// of one call of the model, and the micro-batch is a piece: the rows that are run at once.
// The command's own plan stays unchanged.
//
// Its decisions depend only on its state and the arguments. It must be used by
// one goroutine only.
type Pieces struct {
	policy  recovery.Policy
	history recovery.History
	seen    harness.Evidence
	limit   int
}

// NewPieces returns a Pieces that begins with a limit that an earlier life learned: at most
// limit rows run at once. A limit of 0 means that none is known.
func NewPieces(limit int) *Pieces {
	return &Pieces{limit: max(0, limit), seen: harness.NewEvidence(memory.Stats{}), policy: recovery.Policy{GrowAfter: growAfter}}
}

// Limit returns how many rows may run at once from now on; 0 means all of them.
func (p *Pieces) Limit() int { return p.limit }

// Rows returns how many rows to run at once in the rest of the call that
// failed.
func (p *Pieces) Rows() int { return p.history.Running().Largest() }

// begin switches the history to calls of the given number of rows.
func (p *Pieces) begin(rows int) {
	if p.history.Plan.Effective == rows {
		return
	}
	plan := recovery.Plan{Effective: rows, World: 1, Micro: rows}
	learned := p.history.Learned(plan, "")
	learned.Micro = rows
	if p.limit > 0 {
		learned.Micro = min(rows, p.limit)
	}
	next := recovery.NewHistory(plan).Resume(learned, "")
	next.Finished = p.history.Finished
	p.history = next
}

// Failed decides what to do about the failure f in a call with the given number of
// rows, of which f.Micro were run at once.
func (p *Pieces) Failed(f memory.OutOfMemoryError, rows int) recovery.Decision {
	if rows > 0 {
		p.begin(rows)
	} else {
		p.begin(max(1, p.history.Plan.Effective))
	}
	if ran := p.history.Running().Largest(); f.Micro > 0 && f.Micro != ran && f.Phase.SizedByMicro() {
		p.limit, p.history.Plan.Effective = f.Micro, 0
		p.begin(rows)
	}
	if f.Stats.Capacity <= 0 {
		f = f.Assume(0)
	}
	// The allocator emptied its cache before it failed. Trying the same again helps if
	// the allocator failed although enough memory was free, or if the memory that the
	// first try had allocated was in the way.
	again := f.Requested > 0 && f.Requested <= f.Stats.Free || f.Phase == memory.PhaseUpdate
	p.policy.Able = recovery.Able{EmptyCache: again, CutStep: true, CountSteps: true}
	evidence := p.seen.Of(f, p.history.Running(), 1)
	return p.worded(p.decide(recovery.Event{OOM: &evidence}), rows)
}

// Finished records a finished step, and reports whether the limit has changed.
func (p *Pieces) Finished(step, rows, pieces int, s memory.Stats) (changed bool) {
	if p.history.Plan.Effective == 0 && rows > 0 {
		p.begin(rows)
	}
	if p.history.Plan.Effective == 0 {
		return false
	}
	ran := p.history.Plan
	if rows > 0 {
		cut := max(1, pieces)
		ran = recovery.Plan{Effective: rows, World: 1, Micro: (rows + cut - 1) / cut}
	}
	p.seen.Add(ran, s)
	d := p.decide(recovery.Event{Step: &recovery.Progress{Step: max(step, p.history.Finished+1), Memory: s}})
	return d.Remedy == recovery.Grow
}

// decide asks [recovery.Decide], and keeps the resulting history and limit.
func (p *Pieces) decide(e recovery.Event) recovery.Decision {
	d := recovery.Decide(p.policy, p.history, e)
	p.history = p.history.Apply(e, d)
	if d.Remedy == recovery.Shrink || d.Remedy == recovery.Grow {
		p.limit = d.Plan.Micro
	}
	return d
}

// worded expresses the decision's reason in terms of rows, because to a user the effective
// batch is that of the command's own plan.
func (p *Pieces) worded(d recovery.Decision, rows int) recovery.Decision {
	why := ""
	if d.Verdict != nil {
		why = ": " + d.Verdict.Why
	}
	switch d.Remedy {
	case recovery.EmptyCache:
		d.Reason = "one more try, after freeing what the first had allocated" + why
	case recovery.Shrink, recovery.ShrinkStep:
		lasting := "from now on"
		if d.Remedy == recovery.ShrinkStep {
			lasting = "this time"
		}
		d.Reason = fmt.Sprintf("at most %d of %d rows at once %s%s", d.Plan.Largest(), rows, lasting, why)
	}
	return d
}
