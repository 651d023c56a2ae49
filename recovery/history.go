package recovery

import (
	"headroom/memory"
	"headroom/search"
)

// patienceLimit is how many times the wait between tries at growing back can double. The
// longest wait is 2⁶ times GrowAfter.
const patienceLimit = 6

// History is all that [Decide] knows about the run so far. It is a value: [History.Apply]
// returns the next history and does not change the old one. Its fields belong to Decide; a
// caller reads Plan and Running, and sets Finished when it resumes.
type History struct {
	Plan     Plan // the plan from now on
	Finished int  // optimizer steps finished

	asked   int          // micro-batch that growing never exceeds
	once    Plan         // plan for the running step alone; its Micro is 0 if there is none
	line    search.Line  // peak memory by micro-batch; zero if not known
	guessed bool         // the current plan was computed from line, and no step has run with it yet
	room    memory.Bytes // memory available when the current plan was chosen; 0 if growing back need not wait for more
	proven  Proven       // the largest micro-batch that has run

	recompute  bool
	eased      int // number of ways of Policy.Host in force
	relaunches int
	relaunched int             // steps finished at the last relaunch
	waits      int             // number of waits since the last finished step
	emptied    bool            // whether the cache was emptied since the last finished step
	outliers   int             // steps that needed smaller micro-batches on their own, since the last lasting change of plan
	search     *memory.Verdict // why the running search was asked for

	fixed fixed // the newest failure, and how many smaller micro-batches have failed like it

	quiet    int // steps finished since the last failure or growth
	patience int // failed tries at growing back
	grown    int // micro-batch to go back to if the larger plan fails; 0 once the larger plan has run
}

// fixed is a failure that may not depend on the micro-batch. Alike is how many smaller
// micro-batches have failed in a row on a request of the same size, with as much memory
// allocated, since the last finished step.
type fixed struct {
	micro                int
	requested, allocated memory.Bytes
	alike                int
}

// fixedLimit is how many smaller micro-batches must fail like the first before it counts as
// shown that the micro-batch does not matter. One is not enough: the gradients of equal layers
// are requests of one size, and a smaller micro-batch may just get further before it fails.
const fixedLimit = 2

// with returns the fixed that follows f when a micro-batch fails with failure o. What was allocated
// may differ by an eighth of the request, which also allows for the rounding in messages.
func (f fixed) with(micro int, o memory.OutOfMemoryError) fixed {
	next := fixed{micro: micro, requested: o.Requested, allocated: o.Stats.Allocated}
	differ := max(next.allocated-f.allocated, f.allocated-next.allocated)
	if o.Requested > 0 && o.Requested == f.requested && differ <= o.Requested/8 && micro <= f.micro {
		next.alike = f.alike
		if micro < f.micro {
			next.alike++
		}
	}
	return next
}

// Proven is the largest micro-batch that has run, and the least memory that was available when
// it ran.
type Proven struct {
	Micro int          `json:"micro"`
	Room  memory.Bytes `json:"room"`
}

// NewHistory returns the history at the start of a run that asked for plan p. A Micro of 0
// asks for the largest that fits; the first event is then the end of a search.
func NewHistory(p Plan) History {
	asked := p.Micro
	if asked == 0 {
		asked = p.Share(0)
	}
	return History{Plan: p, asked: asked}
}

// Learned is what one process of a run has found out, so that the next one need not find it
// out again. It is kept in every checkpoint and, between checkpoints, in learned.json.
type Learned struct {
	Asked     int          `json:"asked"`          // micro-batch asked for; 0 if a search was asked for
	Micro     int          `json:"micro"`          // micro-batch in force
	Eval      int          `json:"eval,omitempty"` // evaluation batch in force; 0 if none can be set
	Room      memory.Bytes `json:"room"`           // memory available when that micro-batch was chosen; 0 if growing back need not wait for more
	Line      search.Line  `json:"line"`           // peak memory by micro-batch; zero if not known
	Proven    Proven       `json:"proven"`
	Recompute bool         `json:"recompute,omitempty"`
	Eased     int          `json:"eased,omitempty"`     // number of ways to need less host memory that are in force
	Precision string       `json:"precision,omitempty"` // number format in which that process computed
}

// Learned returns what to hand on to the next process. asked is the plan that the user asked
// for.
func (h History) Learned(asked Plan, precision string) Learned {
	return Learned{Asked: asked.Micro, Micro: h.Plan.Micro, Eval: h.Plan.Eval, Room: h.room, Line: h.line, Proven: h.proven,
		Recompute: h.recompute, Eased: h.eased, Precision: precision}
}

// Resume returns h with what an earlier process has learned, so that the run does not fail
// again where that process failed. It returns h unchanged if that process was asked for
// another micro-batch or used another precision: a user who changes the micro-batch wants the
// new one tried.
func (h History) Resume(l Learned, precision string) History {
	if l.Precision != precision || l.Micro < 1 || l.Asked != h.Plan.Micro || l.Micro > h.asked {
		return h
	}
	h.Plan.Micro, h.room, h.line, h.proven, h.recompute = l.Micro, l.Room, l.Line, l.Proven, l.Recompute
	h.eased = l.Eased
	if l.Eval > 0 {
		h.Plan.Eval = min(h.Plan.Eval, l.Eval)
	}
	return h
}

// Running returns the plan of the step to run next: the one chosen for this step only, if
// there is one, otherwise the current plan.
func (h History) Running() Plan {
	if h.once.Micro > 0 {
		return h.once
	}
	return h.Plan
}

// Recomputing reports whether activations are to be recomputed. A caller
// restores this setting in the trainer of every attempt.
func (h History) Recomputing() bool { return h.recompute }

// Eased returns how many of the policy's ways to save host memory are in force.
func (h History) Eased() int { return h.eased }

// Settled reports whether a later process may begin with the plan in force. If the run has
// grown to this plan, a later process may begin with it only once a step has run with it.
// Otherwise a plan that took this process down could take down the next one, too.
func (h History) Settled() bool { return h.grown == 0 }

// Apply returns the history after event e was answered with d.
func (h History) Apply(e Event, d Decision) History {
	switch {
	case e.OOM != nil:
		h.quiet = 0
		h.search = nil
		h.fixed = h.fixed.with(h.Running().Largest(), e.OOM.Failure)
		h = h.applyRemedy(d, e.OOM.Failure.Stats.Available())
		if d.Remedy == Search {
			h.search = d.Verdict
		}
	case e.Load != nil:
		h = h.applyRemedy(d, e.Load.Failure.Stats.Available())
	case e.Search != nil:
		h.line = e.Search.Result.Line
		h = h.applyRemedy(d, e.Search.Stats.Available())
		h.guessed, h.search = false, nil
	case e.Step != nil:
		h = h.finished(*e.Step)
		h = h.applyRemedy(d, e.Step.Memory.Available())
	}
	return h
}

// finished returns the history after a step, before the decision about it. If the body does
// not count steps, several may have passed since the last call.
func (h History) finished(s Progress) History {
	ran := h.Running().Micro
	known := s.Memory.Capacity > 0
	if available := s.Memory.Available(); known && (ran > h.proven.Micro || ran == h.proven.Micro && available < h.proven.Room) {
		h.proven = Proven{ran, available}
	}
	h.quiet += max(1, s.Step-h.Finished)
	h.Finished = s.Step
	h.once = Plan{}
	h.emptied, h.guessed, h.waits, h.grown, h.fixed = false, false, 0, 0, fixed{}
	if h.quiet >= outlierWindow {
		h.outliers = 0
	}
	return h
}

func (h History) applyRemedy(d Decision, available memory.Bytes) History {
	switch d.Remedy {
	case EmptyCache:
		h.emptied = true
	case ShrinkStep:
		if h.once.Micro == 0 {
			h.outliers++
		}
		h.once = d.Plan
	case Shrink, Continue:
		if d.Plan != h.Plan {
			h = h.changePlan(d, available)
		}
	case Grow:
		before := h.Plan.Micro
		h = h.changePlan(d, available)
		h.grown = before
	case ShrinkEval:
		h.Plan.Eval = d.Plan.Eval
	case Recompute:
		// The memory that a sample needs has changed.
		h.recompute, h.line, h.proven = true, search.Line{}, Proven{}
	case EaseHost:
		h.eased++
	case Wait:
		h.waits++
	case Relaunch:
		h.relaunches++
		h.relaunched = h.Finished
	}
	return h
}

func (h History) changePlan(d Decision, available memory.Bytes) History {
	if h.grown > 0 && d.Remedy == Shrink {
		h.patience = min(h.patience+1, patienceLimit)
	}
	h.guessed = d.Remedy == Shrink && h.grown == 0
	h.grown = 0
	h.Plan, h.once = d.Plan, Plan{}
	h.quiet, h.outliers = 0, 0
	h.room = available
	if d.Verdict != nil && (d.Verdict.Cause == memory.Spike || d.Verdict.Cause == memory.Fragmentation) {
		h.room = 0 // this cause passes by itself, without other processes having to leave
	}
	return h
}
