package main

import (
	"errors"
	"math"
	"testing"
	"time"

	"headroom/device"
	"headroom/memory"
)

// failing is an allocator on which chosen allocations fail. fails maps the numbers of these
// allocations, counted from 1, to their errors.
type failing struct {
	device.TensorAllocator
	count, emptied int
	fails          map[int]error
}

func (f *failing) EmptyCache() (memory.Bytes, error) {
	f.emptied++
	return f.TensorAllocator.EmptyCache()
}

func (f *failing) Alloc(n int, t device.DType) (device.Tensor, error) {
	f.count++
	if err := f.fails[f.count]; err != nil {
		return device.Tensor{}, err
	}
	return f.TensorAllocator.Alloc(n, t)
}

func TestReplay(t *testing.T) {
	trace := small(1, 3, 2, 3)
	r, err := trace.measure(device.NewAllocator(&counter{room: memory.GiB}), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if r.Steps != 4 || r.Pairs != 2 || r.Failed+r.Lost != 0 {
		t.Errorf("%d steps of %d tensors, %d failed, %d lost", r.Steps, r.Pairs, r.Failed, r.Lost)
	}
	if r.PeakAllocated != trace.Peak || r.Allocated != 1024 {
		t.Errorf("%d allocated at peak and %d at the end, want %d and 1024", r.PeakAllocated, r.Allocated, trace.Peak)
	}
	if r.PeakReserved < r.PeakAllocated || r.Reserved != r.PeakReserved || r.Emptied >= r.Reserved || r.Emptied < r.Allocated {
		t.Errorf("reserved: %d at peak, %d at the end, %d emptied", r.PeakReserved, r.Reserved, r.Emptied)
	}
	if !r.Calls.Exact || r.Calls.Reserve != 2 || r.Calls.Release != 0 {
		t.Errorf("calls of the driver: %+v, want a segment for small tensors and one for large ones", r.Calls)
	}
	if r.Median <= 0 || r.Late < r.Median || r.Mean <= 0 {
		t.Errorf("%v ns in the middle, %v at the end, mean %v", r.Median, r.Late, r.Mean)
	}
}

func TestStepsThatFail(t *testing.T) {
	full, broken := &memory.OutOfMemoryError{}, errors.New("broken")
	for name, c := range map[string]struct {
		fails        map[int]error // allocation 1 is the state, 2 and 3 are step 1
		failed, lost int
		err          error
	}{
		"never":                 {},
		"once":                  {fails: map[int]error{3: full}, failed: 1},
		"twice in one step":     {fails: map[int]error{3: full, 4: full}, failed: 1, lost: 1},
		"in two steps":          {fails: map[int]error{2: full, 5: full}, failed: 2},
		"the state":             {fails: map[int]error{1: full}, err: full},
		"not for memory":        {fails: map[int]error{5: broken}, err: broken},
		"not for memory, again": {fails: map[int]error{2: full, 3: broken}, err: broken},
	} {
		m := &failing{TensorAllocator: device.NewAllocator(&counter{room: memory.GiB}), fails: c.fails}
		r, err := small(1, 2, 3).replay(m, time.Hour)
		if !errors.Is(err, c.err) {
			t.Errorf("%s: %v, want %v", name, err, c.err)
		}
		if err != nil {
			continue
		}
		if r.Steps != 3 || r.Failed != c.failed || r.Lost != c.lost {
			t.Errorf("%s: %d steps, %d failed, %d lost, want 3, %d, %d", name, r.Steps, r.Failed, r.Lost, c.failed, c.lost)
		}
		if m.emptied != c.failed {
			t.Errorf("%s: the cache was emptied %d times, want %d", name, m.emptied, c.failed)
		}
		if got := m.Stats().Allocated; got != 1024 {
			t.Errorf("%s: %d bytes are left allocated, want the state's 1024", name, got)
		}
	}
}

// TestTightMemory checks that only the longest steps are lost if the memory is too small only
// for those steps.
func TestTightMemory(t *testing.T) {
	a := device.NewAllocator(&counter{room: 5 * memory.MiB / 2})
	r, err := small(1, 3, 2, 3).measure(a, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if r.Failed != 2 || r.Lost != 2 || r.PeakReserved > 5*memory.MiB/2 || r.Calls.Release == 0 {
		t.Errorf("%+v: want the two steps of 3 MiB lost, and segments given back", *r)
	}
}

func TestBudgetEndsAReplay(t *testing.T) {
	r, err := small(1, 2).measure(device.NewAllocator(&counter{room: memory.GiB}), 0)
	if err != nil || r.Steps != 0 {
		t.Errorf("%v, %v: want no step", r, err)
	}
}

func TestTimes(t *testing.T) {
	seconds := make([]float64, 100)
	for i := range seconds {
		seconds[i] = float64(100-i) * 2e-9
	}
	r := &result{Pairs: 2}
	r.time(seconds)
	near := func(got, want float64) bool { return math.Abs(got-want) < 1e-6 }
	if !near(r.Median, 51) || !near(r.Late, 100) || !near(r.Mean, 50.5) {
		t.Errorf("median %v, 99 %% %v, mean %v ns, want 51, 100, 50.5", r.Median, r.Late, r.Mean)
	}
}
