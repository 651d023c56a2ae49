package harness

import (
	"context"
	"errors"
	"fmt"

	"headroom/memory"
	"headroom/search"
)

// searchLimit is the upper bound of the search at the start of a run.
func (r *runner) searchLimit() int {
	share := r.o.Plan.Share(0)
	if r.o.Search.Max > 0 {
		return min(r.o.Search.Max, share)
	}
	return share
}

// search probes for the largest micro-batch up to limit that fits and feeds
// what it found to Decide.
func (r *runner) search(ctx context.Context, limit int) error {
	if _, err := r.trainer.EmptyCache(); err != nil {
		return fmt.Errorf("search: empty the cache: %w", err)
	}
	stats := r.trainer.Memory()
	o := r.o.Search
	o.Min, o.Max, o.Capacity = max(o.Min, r.o.Policy.minMicro()), limit, stats.Available()
	if o.Headroom == 0 {
		o.Headroom = r.o.Policy.Headroom
	}
	start := r.o.Now()
	var lost error
	result, err := search.Largest(r.patient, o, func(_ context.Context, n int) (memory.Bytes, error) {
		peak, err := r.probe(ctx, n)
		if r.isLost(err) { // whatever else it says is no answer
			lost = err
			return 0, context.Canceled
		}
		return peak, err
	})
	if lost != nil {
		return lost
	}
	if wanted := r.wanted(ctx); wanted != nil {
		return wanted
	}
	if err != nil && !errors.Is(err, search.ErrNothingFits) {
		return fmt.Errorf("search between micro-batch %d and %d: %w", o.Min, o.Max, err)
	}
	seconds := r.o.Now().Sub(start).Seconds()
	text := fmt.Sprintf("micro-batch %d is the largest up to %d that fits (%d probes, %s)", result.Fits, limit, len(result.Probes), lasting(seconds))
	if err != nil {
		text = fmt.Sprintf("not even micro-batch %d fits (%d probes, %s)", o.Min, len(result.Probes), lasting(seconds))
	}
	r.record(Entry{Kind: KindSearch, Text: text, Search: &result, Memory: &stats, Seconds: seconds})
	return r.answer(ctx, Event{Search: &Searched{Result: result, Err: err, Stats: stats}})
}

// probe is one trial, told in the journal.
func (r *runner) probe(ctx context.Context, n int) (memory.Bytes, error) {
	if err := r.wanted(ctx); err != nil {
		return 0, err
	}
	start := r.o.Now()
	stats, err := r.trainer.Probe(ctx, n)
	var oom *memory.OutOfMemory
	if err != nil && (r.isLost(err) || !errors.As(err, &oom)) {
		return 0, fmt.Errorf("probe micro-batch %d: %w", n, err)
	}
	p := search.Probe{N: n, Peak: stats.Peak, Fits: err == nil}
	text := fmt.Sprintf("micro-batch %d fits: peak %v", n, p.Peak)
	if oom != nil {
		p.Peak = oom.Needed()
		text = fmt.Sprintf("micro-batch %d does not fit: at least %v of %v needed", n, p.Peak, oom.Stats.Available())
	}
	r.record(Entry{Kind: KindProbe, Text: text, Probe: &p, OOM: oom, Seconds: r.o.Now().Sub(start).Seconds()})
	return stats.Peak, err
}
