package devicetest

import (
	"headroom/device"
	"headroom/memory"
)

// Faulty is a device some of whose allocations fail, to test what becomes of
// the work that asked for them. Everything else is the device's own. A failing
// call does not reach the device; its error is a *[memory.OutOfMemoryError] with the
// device's Stats at that moment, in which Free may well exceed Requested.
//
// It also counts what was allocated through it and is still live, to find
// leaks. Like the device it is not safe for concurrent use.
type Faulty struct {
	device.Device

	fails    func(nth int, size memory.Bytes) bool
	count    int
	injected int
	live     map[device.Addr]memory.Bytes
	bytes    memory.Bytes
}

// NewFaulty returns d with no failures chosen. Tensors that were allocated
// before may be freed through it; they do not count as live.
func NewFaulty(d device.Device) *Faulty {
	return &Faulty{Device: d, live: map[device.Addr]memory.Bytes{}}
}

// FailAt chooses the calls of Alloc that fail, counted from now on; the next
// one is 1. It replaces what was chosen before; with no arguments nothing
// fails, and only Count restarts.
func (f *Faulty) FailAt(nth ...int) {
	chosen := make(map[int]bool, len(nth))
	for _, n := range nth {
		chosen[n] = true
	}
	f.FailIf(func(n int, _ memory.Bytes) bool { return chosen[n] })
}

// FailIf makes those calls of Alloc fail for which the function returns true. The function
// is called with the call's number, counted from 1 from now on, and the size of the
// contents. FailIf replaces what was chosen before; with nil, no call fails.
func (f *Faulty) FailIf(fails func(nth int, size memory.Bytes) bool) {
	f.fails, f.count = fails, 0
}

// Count is how many times Alloc was called since failures were last chosen,
// failed calls included.
func (f *Faulty) Count() int { return f.count }

// Injected is how many calls of Alloc were made to fail, ever.
func (f *Faulty) Injected() int { return f.injected }

// Live is how many tensors allocated through f have not been freed yet.
func (f *Faulty) Live() int { return len(f.live) }

// LiveBytes is the size of the contents of the tensors that Live counts.
func (f *Faulty) LiveBytes() memory.Bytes { return f.bytes }

// Alloc implements [device.TensorAllocator].
func (f *Faulty) Alloc(n int, t device.DType) (device.Tensor, error) {
	f.count++
	size := device.Tensor{Len: n, DType: t}.Bytes()
	if f.fails != nil && f.fails(f.count, size) {
		f.injected++
		return device.Tensor{}, &memory.OutOfMemoryError{Requested: size, Stats: f.Stats()}
	}
	x, err := f.Device.Alloc(n, t)
	if err == nil {
		f.live[x.Addr] = size
		f.bytes += size
	}
	return x, err
}

// Free implements [device.TensorAllocator].
func (f *Faulty) Free(t device.Tensor) {
	f.Device.Free(t)
	f.bytes -= f.live[t.Addr]
	delete(f.live, t.Addr)
}

// Stats implements [device.TensorAllocator]. Failures counts the injected ones too.
func (f *Faulty) Stats() memory.Stats {
	s := f.Device.Stats()
	s.Failures += int64(f.injected)
	return s
}
