package harness

import (
	"context"
	"fmt"
	"time"

	"headroom/memory"
)

// How a wait for other processes goes: one Wait remedy looks waitPolls times,
// waitPoll apart, and ends early once there is room. A minute in all is short
// beside a job, long beside the time it takes to fail again.
const (
	waitPoll  = 5 * time.Second
	waitPolls = 12
)

// answer asks Decide about an event and carries the answer out.
func (r *runner) answer(ctx context.Context, e Event) error {
	d := Decide(r.o.Policy, r.history, e)
	r.history = r.history.Apply(e, d)
	r.keepLearned()
	switch d.Remedy {
	case Continue:
		if d.Reason != "" {
			r.record(Entry{Kind: KindPlan, Text: d.Reason, Plan: &d.Plan, Decision: &d})
		}
		return nil
	case Stop:
		return r.stop(d)
	}
	r.decided(d)
	switch d.Remedy {
	case EmptyCache:
		return r.emptyCache()
	case Shrink, Grow:
		return r.startAfresh()
	case Search:
		return r.search(ctx, d.Plan.Micro)
	case Recompute:
		if able, ok := r.trainer.(Recomputer); ok { // prepare forbids the remedy to others
			able.SetRecompute(true)
		}
	case Wait:
		return r.wait(ctx, e)
	case Relaunch:
		return errRelaunch
	}
	return nil // ShrinkStep is in the history
}

// startAfresh empties the cache for a new plan. Segments cut to the sizes of the
// old one would be in its way: up to a tenth of the memory, measured.
func (r *runner) startAfresh() error {
	if _, err := r.trainer.EmptyCache(); err != nil {
		return fmt.Errorf("step %d: empty the cache for a new plan: %w", r.step+1, err)
	}
	return nil
}

func (r *runner) decided(d Decision) {
	r.status.Reason = d.Reason
	r.record(Entry{Kind: KindDecision, Text: d.Reason, Plan: &d.Plan, Verdict: d.Verdict, Decision: &d})
}

func (r *runner) emptyCache() error {
	start := r.o.Now()
	given, err := r.trainer.EmptyCache()
	if err != nil {
		return fmt.Errorf("step %d: empty the cache: %w", r.step+1, err)
	}
	seconds := r.o.Now().Sub(start).Seconds()
	stats := r.trainer.Memory()
	r.record(Entry{Kind: KindRemedy, Text: fmt.Sprintf("emptied the cache: %v given back in %s", given, lasting(seconds)), Memory: &stats, Seconds: seconds})
	return nil
}

// pause sleeps for d, or until an end of the run is asked for, which it returns.
func (r *runner) pause(ctx context.Context, d time.Duration) error {
	err := r.o.Sleep(r.patient, d)
	if wanted := r.wanted(ctx); wanted != nil {
		return wanted
	}
	if err != nil {
		return fmt.Errorf("wait: %w", err)
	}
	return nil
}

// wait waits for other processes to leave: until what failed would fit, or the
// wait is over. Either way the step is then tried again.
func (r *runner) wait(ctx context.Context, e Event) error {
	need := r.seen.baseline.Available()
	if e.OOM != nil {
		need = e.OOM.Failure.Needed()
	}
	start := r.o.Now()
	r.setStatus(StateRunning, r.status.Reason)
	var stats memory.Stats
	for range waitPolls {
		if err := r.pause(ctx, waitPoll); err != nil {
			return err
		}
		if stats = r.trainer.Memory(); stats.Available() >= need {
			break
		}
	}
	seconds := r.o.Now().Sub(start).Seconds()
	r.record(Entry{Kind: KindRemedy, Text: fmt.Sprintf("waited %.0f s: %v available, %v needed", seconds, stats.Available(), need), Memory: &stats, Seconds: seconds})
	return nil
}
