package devicetest

import (
	"errors"

	"headroom/device"
	"headroom/memory"
)

// testOutOfMemory fills the device with tensors of one size until an allocation
// fails. It checks the error, that all tensors keep their contents, and that
// freed memory can be allocated again.
func testOutOfMemory(r *rig) {
	const n = 1 << 20
	kept := r.inout(device.F32, []float64{1, 2, 3})
	var filled []device.Tensor
	var failure error
	for range suiteCapacity / counted(n, device.F32) {
		t, err := r.d.Alloc(n, device.F32)
		if err != nil {
			failure = err
			break
		}
		r.d.Fill(t, float32(len(filled)))
		filled = append(filled, t)
	}
	r.wantOutOfMemory(failure, counted(n, device.F32))
	if len(filled) < int(suiteCapacity/counted(n, device.F32))*3/4 {
		r.Errorf("only %d tensors of %v fitted in %v", len(filled), counted(n, device.F32), suiteCapacity)
	}
	r.usable()
	for i, t := range filled {
		if got := r.read(t); got[0] != float32(i) || got[n-1] != float32(i) {
			r.Errorf("tensor %d holds %v and %v after the failure", i, got[0], got[n-1])
		}
	}
	r.d.Free(filled[0])
	filled[0] = r.alloc(n, device.F32) // freed memory can be allocated again
	if got := r.read(kept); got[1] != 2 {
		r.Errorf("a live tensor changed to %v", got)
	}
	for _, t := range filled {
		r.d.Free(t)
	}
	// A single tensor of three quarters of that memory fits only after the cache is
	// emptied.
	large := r.alloc(3*len(filled)/4*n, device.F32)
	if r.d.Stats().Retries == 0 {
		r.Error("an allocation that needs the cache emptied was not counted as a retry")
	}
	r.d.Free(large)
}

func testTooLarge(r *rig) {
	for _, n := range []int{int(suiteCapacity/4) + 1, int(suiteCapacity), 1 << 40, 1 << 60} {
		_, err := r.d.Alloc(n, device.F32)
		r.wantOutOfMemory(err, min(memory.Bytes(n), 1<<55)*4)
	}
	r.usable()
}

// wantOutOfMemory checks the error of an allocation of at least the given size.
func (r *rig) wantOutOfMemory(err error, least memory.Bytes) {
	r.Helper()
	var oom *memory.OutOfMemoryError
	if !errors.As(err, &oom) {
		r.Fatalf("alloc returned %v, want a *memory.OutOfMemoryError", err)
	}
	now := r.d.Stats()
	r.sound(now)
	if oom.Requested < least || oom.Stats.Allocated != now.Allocated || oom.Stats.Capacity != now.Capacity || oom.Stats.Failures == 0 {
		r.Errorf("%+v while the device reports %+v; at least %v were asked for", oom, now, least)
	}
	if oom.Stats.Free >= oom.Requested {
		r.Errorf("%v asked for with %v free", oom.Requested, oom.Stats.Free)
	}
	if oom.Phase != memory.PhaseUnknown || oom.Micro != 0 {
		r.Errorf("phase %q and micro-batch %d are the trainer's to fill in", oom.Phase, oom.Micro)
	}
	if err := r.d.Sync(); err != nil {
		r.Errorf("sync after an allocation failed: %v", err)
	}
}
