package wrap

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"headroom/harness"
	"headroom/memory"
	"headroom/recovery"
	"headroom/search"
)

// FindOptions are the options of [Find].
type FindOptions struct {
	Asked    recovery.Plan // the command's own plan; its micro-batch is tried first
	Sizes    []int         // the micro-batches that keep the effective batch, smallest first; see [rewrite.Sizes]
	Headroom float64       // share of the memory that the recommended size leaves unused

	Try     func(ctx context.Context, p recovery.Plan) (Tried, error) // see [Trials.Try]
	OnTried func(Tried)                                               // called with every trial as it ends; may be nil
}

// Found is the result of [Find].
type Found struct {
	harness.Found
	Sizes  []int   `json:"sizes"`  // the micro-batches to choose from
	Trials []Tried `json:"trials"` // in the order in which they were made
}

// explorer is the state of one call to Find.
type explorer struct {
	FindOptions
	ctx   context.Context
	tried map[int]Tried // by micro-batch
	found Found
	ended error // the error of a trial that failed for a reason other than memory
}

// Find runs trials until it knows the largest micro-batch that fits, among those that
// keep the command's effective batch. It searches by rank, which is the position in the
// list of sizes, and not by size. Only the sizes in the list can be run, so no trial is
// wasted on a size that would be rounded to one already tried. The list is so short that
// bisection is enough: Find does not extrapolate from the memory that trials used. The
// size that the user asked for comes first, because it is the user's own guess. No size
// is tried twice, because each trial has to start and run a process of its own.
//
// The error is one that Try returned, or a *[harness.GaveUpError] if nothing fits.
func Find(ctx context.Context, o FindOptions) (*Found, error) {
	e := &explorer{FindOptions: o, ctx: ctx, tried: map[int]Tried{}, found: Found{Sizes: o.Sizes}}
	fits, fails, err := e.explore()
	if err != nil {
		return nil, err
	}
	wanted, spare, err := e.spare(fits)
	if err != nil {
		return nil, err
	}
	e.conclude(fits, fails, wanted, spare)
	return &e.found, nil
}

// explore returns the ranks, counted from 0, of the largest size that fits and of the
// smallest that does not. If no size failed, fails is the number of sizes.
func (e *explorer) explore() (fits, fails int, err error) {
	low, high, fitted := 0, len(e.Sizes)-1, false
	if at := slices.Index(e.Sizes, e.Asked.Largest()); at >= 0 {
		t, err := e.try(at)
		switch {
		case err != nil:
			return 0, 0, err
		case t.Fits:
			low, fitted = at, true
		default:
			high = at - 1
		}
	}
	for high >= 0 {
		if !fitted {
			low = e.lowest(high)
		}
		top := e.reachable(low, high)
		fits, fails, err = e.search(low, top)
		switch {
		case errors.Is(err, search.ErrNothingFits):
			high = low - 1
		case err != nil || fails <= top || fits == high:
			return fits, fails, err
		default:
			low, fitted = fits, true
		}
	}
	return 0, 0, e.nothing(e.tried[e.Sizes[0]])
}

// lowest returns the rank at which to begin while no size has fitted. high is the highest
// rank that may still fit. The search does not begin with the very smallest sizes,
// because the smaller the size is, the longer a step over the same number of samples
// takes.
func (e *explorer) lowest(high int) int {
	const within = 8
	low := high
	for low > 0 && within*e.Sizes[low-1] >= e.Sizes[min(high+1, len(e.Sizes)-1)] {
		low--
	}
	return low
}

// reach limits how far the search jumps. The size to try next is at most reach times the
// largest size that has fitted, unless even the next larger size exceeds that. A size far
// above the limit of the device can bring the machine down before the device refuses it.
const reach = 16

// reachable returns the index in e.Sizes, at most high, of the largest size that may be
// tried next. low is the index of a size that has fitted or, if none has, of the size to
// be tried first.
func (e *explorer) reachable(low, high int) int {
	top := low + 1
	for top < high && e.Sizes[top+1] <= reach*e.Sizes[low] {
		top++
	}
	return min(top, high)
}

// search finds the largest size that fits among the ranks low to high. fails is high+1 if
// no size failed.
func (e *explorer) search(low, high int) (fits, fails int, err error) {
	r, err := search.Largest(e.ctx, search.Options{Min: low + 1, Max: high + 1, Confirm: 1}, func(_ context.Context, rank int) (memory.Bytes, error) {
		t, err := e.try(rank - 1)
		if err == nil && !t.Fits {
			err = &memory.OutOfMemoryError{} // without amounts: they depend on sizes, but the search goes by rank
		}
		return 0, err
	})
	fails = high + 1
	if r.Fails > 0 {
		fails = r.Fails - 1
	}
	switch {
	case e.ended != nil:
		return 0, 0, e.ended
	case err != nil:
		return 0, 0, fmt.Errorf("search among %d micro-batches: %w", len(e.Sizes), err)
	}
	return r.Fits - 1, fails, nil
}

// try returns the trial of the size at a rank. It runs the trial unless that has been
// done already.
func (e *explorer) try(rank int) (Tried, error) {
	if t, known := e.tried[e.Sizes[rank]]; known {
		return t, nil
	}
	t, err := e.Try(e.ctx, e.Asked.WithMicro(e.Sizes[rank]))
	if err != nil {
		e.ended = err
		return t, err
	}
	e.tried[t.Micro] = t
	e.found.Trials = append(e.found.Trials, t)
	if e.OnTried != nil {
		e.OnTried(t)
	}
	return t, nil
}

// nothing returns the error for a command that did not fit even at the smallest size. t
// is the trial of that size.
func (e *explorer) nothing(t Tried) error {
	verdict := memory.Verdict{Cause: memory.Model, Why: t.Text}
	return &harness.GaveUpError{Step: 1, Decision: recovery.Decision{Remedy: recovery.Stop, Plan: e.Asked.WithMicro(t.Micro), Verdict: &verdict,
		Reason: t.Text + ", and no smaller micro-batch keeps the effective batch", Hint: "use a smaller model, activation checkpointing, or an optimizer with less state"}}
}

// spare returns the rank, at most fits, of the largest size that leaves the headroom
// unused. leaves reports whether that size is known to do so: a size that fits is also
// accepted if its amounts of memory are not known. If no size is accepted, leaves is
// false, and the rank is 0, that of the smallest size. But if the smallest size does not
// even fit, although a larger one does, the rank is fits.
func (e *explorer) spare(fits int) (rank int, leaves bool, err error) {
	for rank = fits; ; rank-- {
		t, err := e.try(rank)
		if err != nil {
			return 0, false, err
		}
		most, beside := e.available(t)
		known := t.Peak > 0 && most > 0
		if t.Fits && (!known || float64(t.Peak-beside) <= (1-e.Headroom)*float64(most)) {
			return rank, known, nil
		}
		switch {
		case rank == 0 && !t.Fits: // although a larger one fits: memory does not grow with the size
			return fits, false, nil
		case rank == 0:
			return 0, false, nil
		}
	}
}

// available returns how much of its GPU the trial t could hold. That is t.Room or, if it
// is less, the lowest limit on an allocator that any trial has shown. beside is the
// amount that was held outside the allocator at the same time, which does not count
// against the allocator's limit.
func (e *explorer) available(t Tried) (most, beside memory.Bytes) {
	most = t.Room
	for _, other := range e.found.Trials {
		if other.Limit > 0 && other.Limit < t.Room {
			most, beside = min(most, other.Limit), max(beside, other.beside)
		}
	}
	return most, beside
}

// conclude fills in the result from the trials.
func (e *explorer) conclude(fits, fails, wanted int, leaves bool) {
	f := &e.found
	largest := e.tried[e.Sizes[fits]]
	f.Available, _ = e.available(largest)
	f.Largest = timing(largest)
	for _, t := range f.Trials {
		f.Probes = append(f.Probes, search.Probe{N: t.Micro, Peak: t.Peak, Fits: t.Fits})
		if t.PerSecond > 0 {
			f.Timings = append(f.Timings, timing(t))
		}
	}
	slices.SortFunc(f.Timings, func(a, b harness.Timing) int { return b.Micro - a.Micro })
	if !slices.ContainsFunc(f.Probes, func(p search.Probe) bool { return p.Fits && p.Peak == 0 }) {
		f.Line = search.Fit(f.Probes)
	}
	speeds := make([]search.Speed, len(f.Timings))
	for i, t := range f.Timings {
		speeds[i] = search.Speed{N: t.Micro, PerSecond: t.PerSecond}
	}
	f.Enough, _ = search.Enough(speeds)
	f.Recommended = e.Asked.WithMicro(e.Sizes[wanted])
	f.Reason = fmt.Sprintf("%v: ", f.Recommended)
	if f.Available > 0 {
		f.Reason += fmt.Sprintf("in %v, ", f.Available)
	}
	f.Reason += e.known(fits, fails)
	chosen := e.tried[e.Sizes[wanted]]
	switch {
	case leaves:
		f.Reason += fmt.Sprintf("; sizes up to %d leave at least %.3g %% of the memory unused", chosen.Micro, 100*e.Headroom)
	case chosen.Peak > 0 && chosen.Room > 0:
		f.Reason += fmt.Sprintf("; no size leaves at least %.3g %% of the memory unused, and %d, the smallest, leaves the most", 100*e.Headroom, chosen.Micro)
	}
}

// known says in words what the trials have shown about the largest size that fits.
func (e *explorer) known(fits, fails int) string {
	r := search.Result{Max: e.Sizes[len(e.Sizes)-1], Fits: e.Sizes[fits]}
	if fails == fits+1 && fails < len(e.Sizes) {
		r.Fails = r.Fits + 1
		text := r.String()
		if e.Sizes[fails] > r.Fails {
			text += fmt.Sprintf(" among those that keep the effective batch; %d, the next size, does not fit", e.Sizes[fails])
		}
		return text
	}
	if fails < len(e.Sizes) {
		r.Fails = e.Sizes[fails]
	}
	return r.String()
}

func timing(t Tried) harness.Timing {
	return harness.Timing{Micro: t.Micro, Accumulation: t.Accumulation, Steps: t.Steps, Peak: t.Peak, PerSecond: t.PerSecond}
}
