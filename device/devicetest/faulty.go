package devicetest

import (
	"headroom/device"
	"headroom/memory"
)

// Faulty wraps a device and makes chosen allocations fail, so that a test can see
// how the code that asked for them copes. Everything else is passed to the device. A
// failing call does not reach the device. Its error is a *[memory.OutOfMemoryError]
// with Faulty's Stats at that moment, in which Free may well exceed Requested.
//
// It also counts the tensors that were allocated through it and are still live,
// to find leaks. Like the device it is not safe for concurrent use.
type Faulty struct {
	device.Device

	fails    func(nth int, size memory.Bytes) bool
	count    int
	injected int
	live     map[device.Addr]memory.Bytes
	bytes    memory.Bytes
}

// NewFaulty returns a Faulty that wraps d and has no failures chosen yet. Tensors that d
// allocated before may be freed through it; they do not count as live.
func NewFaulty(d device.Device) *Faulty {
	return &Faulty{Device: d, live: map[device.Addr]memory.Bytes{}}
}

// FailAt chooses the calls of Alloc that fail, by their numbers; the next call
// is number 1. The choice replaces the previous one. With no arguments, no call
// fails. Count starts again from 0.
func (f *Faulty) FailAt(nth ...int) {
	chosen := make(map[int]bool, len(nth))
	for _, n := range nth {
		chosen[n] = true
	}
	f.FailIf(func(n int, _ memory.Bytes) bool { return chosen[n] })
}

// FailIf sets the function that chooses the calls of Alloc that fail: those for which it
// returns true. Its arguments are the call's number, where the next call is number 1, and
// the size of the tensor's contents. The choice replaces the previous one; with nil, no
// call fails. Count starts again from 0.
func (f *Faulty) FailIf(fails func(nth int, size memory.Bytes) bool) {
	f.fails, f.count = fails, 0
}

// Count returns how many times Alloc has been called since failures were last chosen,
// including failed calls.
func (f *Faulty) Count() int { return f.count }

// Injected returns how many calls of Alloc f has made fail since it was
// created.
func (f *Faulty) Injected() int { return f.injected }

// Live returns how many tensors allocated through f have not been freed yet.
func (f *Faulty) Live() int { return len(f.live) }

// LiveBytes returns the total size of the contents of the tensors that Live
// counts.
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
