package harness

import (
	"context"
	"fmt"
	"time"

	"headroom/memory"
	"headroom/recovery"
	"headroom/runs"
)

// One Wait remedy checks the memory waitPolls times, waitPoll apart, and ends early once
// there is enough. All of these checks together take a minute, which is short compared
// with a job, but long compared with the time that another failure takes.
const (
	waitPoll  = 5 * time.Second
	waitPolls = 12
)

// carryOut carries out d, the decision about e.
func (l *loop) carryOut(ctx context.Context, d recovery.Decision, e recovery.Event) error {
	switch d.Remedy {
	case recovery.EmptyCache:
		return l.emptyCache()
	case recovery.Shrink, recovery.Grow:
		return l.startAfresh()
	case recovery.Search:
		return l.search(ctx, d.Plan.Micro)
	case recovery.Recompute:
		if able, ok := l.trainer.(Recomputer); ok { // Decide chooses this remedy only for such trainers: see prepare
			able.SetRecompute(true)
		}
	case recovery.Wait:
		return l.wait(ctx, e)
	case recovery.Relaunch:
		return errRelaunch
	}
	return nil // Continue and ShrinkStep need no action; the history holds the plan for the next step
}

// startAfresh empties the cache before a new plan takes effect. Cached segments with
// the sizes of the old plan would not suit the new one: measurements showed that
// they can take up a tenth of the memory.
func (l *loop) startAfresh() error {
	if _, err := l.trainer.EmptyCache(); err != nil {
		return fmt.Errorf("step %d: empty the cache for a new plan: %w", l.step()+1, err)
	}
	return nil
}

func (l *loop) emptyCache() error {
	start := l.o.Now()
	given, err := l.trainer.EmptyCache()
	if err != nil {
		return fmt.Errorf("step %d: empty the cache: %w", l.step()+1, err)
	}
	seconds := l.o.Now().Sub(start).Seconds()
	stats := l.trainer.Stats()
	l.session.Note(runs.Entry{Kind: runs.KindRemedy, Text: fmt.Sprintf("emptied the cache: %v given back in %s", given, lasting(seconds)), Memory: &stats, Seconds: seconds})
	return nil
}

// pause sleeps for d. If the run is asked to stop, pause ends early and returns the
// reason.
func (l *loop) pause(ctx context.Context, d time.Duration) error {
	err := l.do.Sleep(l.patient, d)
	if wanted := l.wanted(ctx); wanted != nil {
		return wanted
	}
	if err != nil {
		return fmt.Errorf("wait: %w", err)
	}
	return nil
}

// wait waits until other processes have released enough memory for what failed, or until
// its time is up. In both cases the failed step is then tried again. If the model could
// not be built, there is no trainer whose memory could be checked: wait then waits for
// the full time and asks for a new attempt.
func (l *loop) wait(ctx context.Context, e recovery.Event) error {
	l.session.show()
	if e.Load != nil {
		if err := l.pause(ctx, waitPolls*waitPoll); err != nil {
			return err
		}
		return errRelaunch
	}
	need := l.session.baseline().Available()
	if e.OOM != nil {
		need = e.OOM.Failure.Needed()
	}
	start := l.o.Now()
	var stats memory.Stats
	for range waitPolls {
		if err := l.pause(ctx, waitPoll); err != nil {
			return err
		}
		if stats = l.trainer.Stats(); stats.Available() >= need {
			break
		}
	}
	seconds := l.o.Now().Sub(start).Seconds()
	l.session.Note(runs.Entry{Kind: runs.KindRemedy, Text: fmt.Sprintf("waited %.0f s: %v available, %v needed", seconds, stats.Available(), need), Memory: &stats, Seconds: seconds})
	return nil
}
