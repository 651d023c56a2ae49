package job

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"headroom/memory"
	"headroom/worker"
)

// ranksWithin is how long after the first rank the others may finish their first step.
const ranksWithin = 2 * time.Minute

// errMissing means that not all ranks of a training can make trials.
var errMissing = errors.New("not all of its ranks made a first step here")

// ranks are the ranks of one training, each of which makes the trials of its own step. Those of a process that trains alone are one.
type ranks []*worker.Trials

// gathered waits until all ranks of the training can make trials whose first one has arrived. It returns nil if gone is closed before, as
// one cannot, or ctx is cancelled.
func gathered(ctx context.Context, first *worker.Trials, arriving <-chan *worker.Trials, gone <-chan struct{}, within time.Duration) (ranks, error) {
	all, known := ranks{first}, map[int]bool{first.Rank: true}
	until := time.NewTimer(within)
	defer until.Stop()
	for len(all) < first.World {
		select {
		case next := <-arriving:
			if !known[next.Rank] && next.World == first.World {
				all, known[next.Rank] = append(all, next), true
			}
		case <-gone:
			return nil, nil
		case <-ctx.Done():
			return nil, nil
		case <-until.C:
			return nil, fmt.Errorf("%w: %d of %d", errMissing, len(all), first.World)
		}
	}
	return all, nil
}

// smallest returns the trials of all ranks as those of one that has no more room than any of them, and holds no less.
func (all ranks) smallest() *worker.Trials {
	one := *all[0]
	for _, t := range all[1:] {
		one.Rows, one.Times = max(one.Rows, t.Rows), max(one.Times, t.Times)
		one.Whole, one.Keeps = one.Whole && t.Whole, one.Keeps && t.Keeps
		one.Capacity, one.Held, one.Beside = min(one.Capacity, t.Capacity), min(one.Held, t.Held), max(one.Beside, t.Beside)
		for _, n := range [][2]*memory.Bytes{{&one.Weights, &t.Weights}, {&one.Gradients, &t.Gradients}, {&one.States, &t.States}, {&one.Together, &t.Together}} {
			*n[0] = max(*n[0], *n[1])
		}
		one.Full, one.Stays = min(one.Full, t.Full), min(one.Stays, t.Stays)
		if one.Uncut == "" {
			one.Uncut = t.Uncut
		}
	}
	return &one
}

// each has all ranks make a trial at once. It fits if it fits on each of them.
func (all ranks) each(try func(*worker.Trials) (worker.Trial, error)) (worker.Trial, error) {
	tried, errs := make([]worker.Trial, len(all)), make([]error, len(all))
	var waiting sync.WaitGroup
	for i, t := range all {
		waiting.Go(func() { tried[i], errs[i] = try(t) })
	}
	waiting.Wait()
	return slowest(tried), errors.Join(errs...)
}

// slowest returns the trial of the rank that needs most, and what the others need more than it.
func slowest(tried []worker.Trial) worker.Trial {
	most := tried[0]
	for _, t := range tried[1:] {
		if most.Fits && (!t.Fits || t.Peak > most.Peak) {
			most = t
		}
	}
	for _, t := range tried {
		most.Capacity, most.Update, most.Seconds = min(most.Capacity, t.Capacity), max(most.Update, t.Update), max(most.Seconds, t.Seconds)
	}
	return most
}

func (all ranks) try(ctx context.Context, rows int, most memory.Bytes) (worker.Trial, error) {
	return all.each(func(t *worker.Trials) (worker.Trial, error) { return t.Try(ctx, rows, most) })
}

func (all ranks) evaluate(ctx context.Context, rows int, most memory.Bytes) (worker.Trial, error) {
	return all.each(func(t *worker.Trials) (worker.Trial, error) { return t.Evaluate(ctx, rows, most) })
}
