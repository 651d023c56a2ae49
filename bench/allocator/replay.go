package main

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"headroom/device"
	"headroom/memory"
)

// result is the outcome of a replay. replay.py writes the same keys.
type result struct {
	Allocator string       `json:"allocator"`
	Device    string       `json:"device"`
	Version   string       `json:"version"`
	Limit     memory.Bytes `json:"limit"`  // 0 means no limit
	Factor    float64      `json:"factor"` // the limit ÷ the trace's peak
	Steps     int          `json:"steps"`  // fewer than the trace has if time ran out
	Pairs     int          `json:"pairs"`  // tensors per step

	// Nanoseconds for one Alloc and its Free, computed for each step as its time ÷
	// Pairs: the median, the 99th percentile and the mean over all steps.
	Median float64 `json:"pair_ns"`
	Late   float64 `json:"pair_ns_p99"`
	Mean   float64 `json:"pair_ns_mean"`
	// Overhead is the part of Median that is spent in the loop and the language, in
	// nanoseconds. It is nil if the overhead is so small that it was not measured.
	Overhead *float64 `json:"overhead_ns"`

	PeakAllocated memory.Bytes `json:"peak_allocated"`
	PeakReserved  memory.Bytes `json:"peak_reserved"`
	Allocated     memory.Bytes `json:"allocated"` // after the last step, when only the state is allocated
	Reserved      memory.Bytes `json:"reserved"`  // after the last step
	Emptied       memory.Bytes `json:"emptied"`   // reserved after the cache was emptied

	Calls   calls `json:"driver_calls"`
	Retries int64 `json:"retries"` // allocations that succeeded after the allocator emptied its cache
	Failed  int   `json:"failed"`  // steps that were run again because an allocation failed
	Lost    int   `json:"lost"`    // steps that failed the second time too
}

// calls holds the numbers of calls to the driver. Exact reports whether they
// are exact; see measure.
type calls struct {
	Reserve int64 `json:"reserve"`
	Release int64 `json:"release"`
	Exact   bool  `json:"exact"`
}

// player replays a trace on one allocator.
type player struct {
	trace        *trace
	on           device.TensorAllocator
	live         []device.Tensor // tensors of the current step, by slot
	failed, lost int             // steps
}

// replay runs the steps of t until all are done or budget is used up, and leaves the
// state allocated.
func (t *trace) replay(on device.TensorAllocator, budget time.Duration) (*result, error) {
	p := &player{trace: t, on: on, live: make([]device.Tensor, t.Slots)}
	for _, n := range t.State {
		if _, err := alloc(on, n); err != nil {
			return nil, fmt.Errorf("the state alone does not fit: %w", err)
		}
	}
	seconds := make([]float64, 0, len(t.Lengths))
	for begun := time.Now(); len(seconds) < len(t.Lengths) && time.Since(begun) < budget; {
		start := time.Now()
		if err := p.step(t.Lengths[len(seconds)]); err != nil {
			return nil, fmt.Errorf("step %d: %w", len(seconds)+1, err)
		}
		seconds = append(seconds, time.Since(start).Seconds())
	}
	r := &result{Steps: len(seconds), Pairs: t.pairs(), Failed: p.failed, Lost: p.lost}
	r.time(seconds)
	r.count(on.Stats())
	return r, nil
}

// step runs a step. If memory runs out, it does the same as a training run: it frees
// the step's tensors, empties the cache and runs the step once more.
func (p *player) step(length int) error {
	err := p.attempt(length)
	if !isOutOfMemory(err) {
		return err
	}
	p.failed++
	if _, err := p.on.EmptyCache(); err != nil {
		return err
	}
	err = p.attempt(length)
	if !isOutOfMemory(err) {
		return err
	}
	p.lost++
	return nil
}

// attempt runs a step once. If it returns an error, it has freed all of the step's
// tensors.
func (p *player) attempt(length int) error {
	for _, o := range p.trace.Ops {
		if o.frees() {
			p.free(o.Slot)
			continue
		}
		x, err := alloc(p.on, o.size(length))
		if err != nil {
			for slot := range p.live {
				p.free(slot)
			}
			return err
		}
		p.live[o.Slot] = x
	}
	return nil
}

func (p *player) free(slot int) {
	if x := p.live[slot]; x.Valid() {
		p.on.Free(x)
		p.live[slot] = device.Tensor{}
	}
}

func isOutOfMemory(err error) bool {
	var oom *memory.OutOfMemoryError
	return err != nil && errors.As(err, &oom)
}

// alloc allocates n bytes, rounded up to whole elements.
func alloc(on device.TensorAllocator, n memory.Bytes) (device.Tensor, error) {
	size := device.F32.Size()
	return on.Alloc((int(n)+size-1)/size, device.F32)
}

func (r *result) time(seconds []float64) {
	if len(seconds) == 0 || r.Pairs == 0 {
		return
	}
	each := 1e9 / float64(r.Pairs)
	for _, s := range seconds {
		r.Mean += s * each / float64(len(seconds))
	}
	slices.Sort(seconds)
	r.Median = seconds[len(seconds)/2] * each
	r.Late = seconds[len(seconds)*99/100] * each
}

func (r *result) count(s memory.Stats) {
	r.PeakAllocated, r.PeakReserved = s.Peak, s.PeakReserved
	r.Allocated, r.Reserved = s.Allocated, s.Reserved
	r.Retries = s.Retries
}

// measure replays t on the allocator on, and then empties that allocator's cache. To
// count the calls to the driver, it replays the same steps a second time, with a counter
// in place of the driver. The counts are exact if [result.amounts] is the same for both
// replays. The amounts may differ, because the addresses differ, and among gaps of equal
// size the allocator takes the one at the lowest address.
func (t *trace) measure(on device.TensorAllocator, budget time.Duration) (*result, error) {
	source := &counter{room: on.Stats().Free}
	r, err := t.replay(on, budget)
	if err != nil {
		return nil, err
	}
	if _, err := on.EmptyCache(); err != nil {
		return nil, err
	}
	r.Emptied = on.Stats().Reserved

	same := *t
	same.Lengths = t.Lengths[:r.Steps]
	counted, err := same.replay(device.NewAllocator(source), time.Hour)
	if err != nil {
		return nil, err
	}
	r.Calls = calls{source.reserves, source.releases, r.amounts() == counted.amounts()}
	return r, nil
}

// amounts returns the numbers that are equal for two replays whose allocators
// made the same choices.
func (r *result) amounts() [7]int64 {
	return [...]int64{
		int64(r.PeakAllocated), int64(r.PeakReserved), int64(r.Allocated), int64(r.Reserved),
		r.Retries, int64(r.Failed), int64(r.Lost),
	}
}
