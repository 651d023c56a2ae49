package devicetest

import (
	"headroom/device"
	"headroom/memory"
)

// counted returns how many bytes Stats counts for a tensor of n elements of
// type t.
func counted(n int, t device.DType) memory.Bytes {
	return memory.Bytes((n*t.Size() + 511) / 512 * 512)
}

func testAlignment(r *rig) {
	for _, n := range []int{1, 3, 127, 128, 129, 5000, 300_000} {
		t := r.alloc(n, r.act)
		if t.Addr%512 != 0 || t.Addr == 0 || t.Len != n || t.DType != r.act {
			r.Errorf("alloc %d: %+v, want an address that is a multiple of 512", n, t)
		}
		defer r.d.Free(t)
	}
	if err := panicOf(func() { _, _ = r.d.Alloc(0, r.act) }); !isShapeError(err) {
		r.Errorf("alloc of 0 elements: %v, want a *device.ShapeError", err)
	}
}

func testStats(r *rig) {
	start := r.d.Stats()
	if start.Allocated != 0 || start.Capacity <= 0 || start.Capacity > suiteCapacity {
		r.Fatalf("a fresh device of %v reports %+v", suiteCapacity, start)
	}
	a, b := r.alloc(1000, r.act), r.alloc(70_000, device.I32)
	one := counted(1000, r.act)
	both := one + counted(70_000, device.I32)
	r.wantStats("two tensors", both, both)
	r.d.Free(b)
	r.wantStats("one freed", one, both)
	r.d.ResetPeak()
	r.wantStats("peak reset", one, one)
	r.d.Free(a)
	r.wantStats("both freed", 0, one)
}

func (r *rig) wantStats(when string, allocated, peak memory.Bytes) {
	r.Helper()
	s := r.d.Stats()
	if s.Allocated != allocated || s.Peak != peak {
		r.Errorf("%s: %v allocated, peak %v; want %v, %v", when, s.Allocated, s.Peak, allocated, peak)
	}
	r.sound(s)
}

// sound checks the relations that must hold between statistics at any time.
func (r *rig) sound(s memory.Stats) {
	r.Helper()
	idle := s.Reserved - s.Allocated
	if s.Allocated > s.Reserved || s.Reserved > s.Capacity || s.LargestFree > idle || s.Peak < s.Allocated ||
		s.PeakReserved < s.Reserved || s.Free < 0 || s.Foreign < 0 || s.Free > s.Capacity-s.Reserved {
		r.Errorf("statistics contradict themselves: %+v", s)
	}
}

func testReuse(r *rig) {
	for range 3 {
		t := r.alloc(500_000, device.F32)
		reserved := r.d.Stats().Reserved
		r.d.Free(t)
		r.d.Free(r.alloc(500_000, device.F32))
		if got := r.d.Stats().Reserved; got != reserved {
			r.Errorf("%v reserved after a tensor was freed and allocated again, %v before", got, reserved)
		}
	}
}

func testEmptyCache(r *rig) {
	kept := r.inout(device.F32, []float64{5, 6})
	for _, n := range []int{10, 100_000, 2_000_000} {
		r.d.Free(r.alloc(n, device.F32))
	}
	before := r.d.Stats()
	given, err := r.d.EmptyCache()
	after := r.d.Stats()
	if err != nil || given <= 0 || after.Reserved != before.Reserved-given || after.Free < before.Free {
		r.Errorf("empty cache: %v, %v; reserved %v → %v, free %v → %v", given, err, before.Reserved, after.Reserved, before.Free, after.Free)
	}
	if got := r.read(kept); got[0] != 5 || got[1] != 6 {
		r.Errorf("emptying the cache changed a live tensor to %v", got)
	}
	r.freeAll()
	if _, err := r.d.EmptyCache(); err != nil || r.d.Stats().Reserved != 0 {
		r.Errorf("empty cache with nothing live: %v, %v still reserved", err, r.d.Stats().Reserved)
	}
}

// testRandomAllocations compares the statistics with the sum of the live
// tensors' sizes. It fills every tensor with a different number, so that it
// notices if two tensors overlap.
func testRandomAllocations(r *rig) {
	type owned struct {
		t device.Tensor
		v float32
	}
	var live []owned
	var sum memory.Bytes
	drop := func(i int) {
		for _, got := range r.read(live[i].t) {
			if got != live[i].v {
				r.Fatalf("a tensor filled with %v holds %v: two overlap", live[i].v, got)
			}
		}
		r.d.Free(live[i].t)
		sum -= counted(live[i].t.Len, device.F32)
		live[i] = live[len(live)-1]
		live = live[:len(live)-1]
	}
	for step := range 400 {
		if len(live) > 0 && r.rng.IntN(5) < 2 {
			drop(r.rng.IntN(len(live)))
		} else if n := 1 + r.rng.IntN(1<<r.rng.IntN(16)); sum+counted(n, device.F32) < suiteCapacity/4 {
			t := r.alloc(n, device.F32)
			r.d.Fill(t, float32(step))
			live = append(live, owned{t, float32(step)})
			sum += counted(n, device.F32)
		}
		if got := r.d.Stats().Allocated; got != sum {
			r.Fatalf("step %d: %v allocated, want %v", step, got, sum)
		}
		r.sound(r.d.Stats())
	}
	for len(live) > 0 {
		drop(len(live) - 1)
	}
}

func testWrongFree(r *rig) {
	t := r.alloc(256, device.F32)
	for name, wrong := range map[string]device.Tensor{
		"a view": t.View(128, 128), "the beginning of a tensor": t.View(0, 128), "no tensor": {},
	} {
		if panicOf(func() { r.d.Free(wrong) }) == nil {
			r.Errorf("freeing %s did not panic", name)
		}
	}
	r.d.Free(t)
	if panicOf(func() { r.d.Free(t) }) == nil {
		r.Error("freeing twice did not panic")
	}
}

// testCloseWithTensors checks that Close does not need all tensors to be freed:
// a run that stops in the middle of a step also closes its device.
func testCloseWithTensors(r *rig) {
	r.d.Fill(r.alloc(1000, device.F32), 1)
	if err := r.d.Close(); err != nil {
		r.Errorf("close: %v", err)
	}
	r.closed = true
	if err := r.d.Close(); err != nil {
		r.Errorf("second close: %v", err)
	}
}
