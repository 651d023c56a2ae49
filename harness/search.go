package harness

import (
	"context"
	"errors"
	"fmt"

	"headroom/memory"
	"headroom/recovery"
	"headroom/runs"
	"headroom/search"
)

// seek probes a trainer for the largest micro-batch up to limit that fits. It calls
// probed with the result of every trial.
//
// Any error other than running out of memory ends the search and is returned. Before
// each trial, seek calls wanted, whose error also ends the search. An error of the
// trainer for which fatal returns true ends the search even if memory ran out. fatal
// may be nil.
func seek(ctx context.Context, t Trainer, p recovery.Policy, limit int, wanted func() error, fatal func(error) bool, probed func(search.Probe, *memory.OutOfMemoryError)) (recovery.Searched, error) {
	if _, err := t.EmptyCache(); err != nil {
		return recovery.Searched{}, fmt.Errorf("search: empty the cache: %w", err)
	}
	found := recovery.Searched{Stats: t.Stats()}
	o := search.Options{Min: p.Least(), Max: limit, Capacity: found.Stats.Available(), Headroom: p.Headroom}
	var ended, err error
	found.Result, err = search.Largest(ctx, o, func(ctx context.Context, n int) (memory.Bytes, error) {
		if ended = wanted(); ended != nil {
			return 0, ended
		}
		stats, err := t.Probe(ctx, n)
		var oom *memory.OutOfMemoryError
		if err != nil && (fatal != nil && fatal(err) || !errors.As(err, &oom)) {
			ended = fmt.Errorf("probe micro-batch %d: %w", n, err)
			return 0, context.Canceled // ends the search; seek then returns ended
		}
		probe := search.Probe{N: n, Peak: stats.Peak, Fits: err == nil}
		if oom != nil {
			probe.Peak = oom.Needed()
		}
		probed(probe, oom)
		return stats.Peak, err
	})
	switch {
	case ended != nil:
		return found, ended
	case err != nil && !errors.Is(err, search.ErrNothingFits):
		return found, fmt.Errorf("search between micro-batches %d and %d: %w", o.Min, o.Max, err)
	}
	return found, nil
}

// probeText describes the outcome of a trial in words.
func probeText(p search.Probe, oom *memory.OutOfMemoryError) string {
	if oom != nil {
		return fmt.Sprintf("micro-batch %d does not fit: it needs %s", p.N, oom.Shortage())
	}
	return fmt.Sprintf("micro-batch %d fits: peak %v", p.N, p.Peak)
}

// search probes for the largest micro-batch up to limit that fits. It then asks the
// session for a decision about the result, and carries the decision out.
func (l *loop) search(ctx context.Context, limit int) error {
	start := l.o.Now()
	last := start
	found, err := seek(l.patient, l.trainer, l.o.Policy, limit, func() error { return l.wanted(ctx) }, l.isGone, func(p search.Probe, oom *memory.OutOfMemoryError) {
		now := l.o.Now()
		l.session.Note(runs.Entry{Kind: runs.KindProbe, Text: probeText(p, oom), Probe: &p, OOM: oom, Seconds: now.Sub(last).Seconds()})
		last = now
	})
	if l.isGone(err) {
		return err
	}
	if wanted := l.wanted(ctx); wanted != nil {
		return wanted
	}
	if err != nil {
		return err
	}
	seconds := l.o.Now().Sub(start).Seconds()
	l.session.Note(runs.Entry{Kind: runs.KindSearch, Text: searchText(found.Result, seconds), Search: &found.Result, Memory: &found.Stats, Seconds: seconds})
	return l.answer(ctx, recovery.Event{Search: &found}, 0)
}

// searchText says what a search found, and how many probes and how much time it took.
func searchText(found search.Result, seconds float64) string {
	probes := "1 probe"
	if n := len(found.Probes); n != 1 {
		probes = fmt.Sprintf("%d probes", n)
	}
	return fmt.Sprintf("%v (%s, %s)", found, probes, lasting(seconds))
}
