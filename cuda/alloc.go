//go:build cuda

package cuda

import (
	"errors"
	"fmt"

	"gorgonia.org/cu"

	"headroom/device"
	"headroom/memory"
	"headroom/nvml"
)

// Alloc calls the allocator's Alloc. If memory runs out, the error also lists the
// holders of the GPU's memory, provided that NVML reports them.
func (g *gpu) Alloc(n int, t device.DType) (device.Tensor, error) {
	x, err := g.Allocator.Alloc(n, t)
	var oom *memory.OutOfMemoryError
	if errors.As(err, &oom) {
		if now, watched := GPUOf(int(g.ordinal)); watched == nil {
			oom.Others = nvml.Took(nil, now.Holders)
		}
	}
	return x, err
}

// segments is a [device.Source] that takes memory from the driver.
type segments struct {
	bound *bound
	held  memory.Bytes
}

func (s *segments) Reserve(n memory.Bytes) (device.Addr, error) {
	var p cu.DevicePtr
	err := s.bound.do(func() (err error) {
		p, err = cu.MemAlloc(int64(n))
		return err
	})
	if errors.Is(err, cu.OutOfMemory) {
		return 0, &memory.OutOfMemoryError{Requested: n}
	}
	if err != nil {
		return 0, fault(fmt.Sprintf("reserve %v", n), err)
	}
	s.held += n
	return device.Addr(p), nil
}

func (s *segments) Release(a device.Addr, n memory.Bytes) error {
	if err := s.bound.do(func() error { return cu.MemFree(cu.DevicePtr(a)) }); err != nil {
		return fault(fmt.Sprintf("release %v", n), err)
	}
	s.held -= n
	return nil
}

// Room implements [device.Source]. It counts as foreign all memory that is
// neither free nor held by s: the memory of other processes and of this
// process's context.
func (s *segments) Room() (free, capacity, foreign memory.Bytes) {
	var f, total int64
	err := s.bound.do(func() (err error) {
		f, total, err = cu.MemInfo()
		return err
	})
	if err != nil {
		return 0, 0, 0
	}
	free, capacity = memory.Bytes(f), memory.Bytes(total)
	return free, capacity, max(0, capacity-free-s.held)
}
