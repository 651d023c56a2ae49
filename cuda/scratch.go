//go:build cuda

package cuda

import (
	"errors"
	"unsafe"

	"gorgonia.org/cu"

	"headroom/device"
	"headroom/memory"
)

const (
	// chunkBytes holds one matrix of attention scores; two of them stay in the
	// L2 cache of the larger GPUs. If one block of a sequence's rows needs
	// more, the block has fewer rows.
	chunkBytes = 24 * memory.MiB
	// pieceBytes holds the pieces of reductions, and the addresses for batched
	// matrix products.
	pieceBytes = 16 * memory.MiB
	// blasBytes is cuBLAS's workspace; 32 MiB is what NVIDIA recommends for
	// Hopper. A workspace of its own makes cuBLAS's results reproducible.
	blasBytes = 32 * memory.MiB
)

// scratch is memory that operations use within themselves. It is reserved once,
// outside the allocator, like the driver's own memory.
type scratch struct {
	base   cu.DevicePtr
	scores device.Addr // chunkBytes
	other  device.Addr // chunkBytes
	pieces device.Addr // pieceBytes
	blas   device.Addr // blasBytes
	fault  device.Addr // one int: 1 after an operation saw an index outside its table
}

const scratchBytes = 2*chunkBytes + pieceBytes + blasBytes + 512

func (s *scratch) open() error {
	base, err := cu.MemAlloc(int64(scratchBytes))
	if errors.Is(err, cu.OutOfMemory) {
		free, total, _ := cu.MemInfo() // without the numbers the error still says what happened
		return &memory.OutOfMemoryError{Requested: scratchBytes, Stats: memory.Stats{Capacity: memory.Bytes(total), Free: memory.Bytes(free)}}
	}
	if err != nil {
		return fault("reserve scratch memory", err)
	}
	s.base = base
	at := device.Addr(base)
	for _, part := range []struct {
		addr *device.Addr
		size memory.Bytes
	}{{&s.scores, chunkBytes}, {&s.other, chunkBytes}, {&s.pieces, pieceBytes}, {&s.blas, blasBytes}, {&s.fault, 512}} {
		*part.addr = at
		at += device.Addr(part.size)
	}
	return fault("clear scratch memory", cu.MemsetD32(cu.DevicePtr(s.fault), 0, 1))
}

func (s *scratch) close() {
	if s.base != 0 {
		_ = cu.MemFree(s.base) // the context is released next, and this memory with it
	}
	*s = scratch{}
}

// errIndex is an index that an operation found outside its table.
var errIndex = errors.New("a token or target is outside [0, classes)")

// takeFault reads the fault and clears it.
func (s *scratch) takeFault() error {
	if s.base == 0 {
		return nil
	}
	var seen int32
	if err := cu.MemcpyDtoH(unsafe.Pointer(&seen), cu.DevicePtr(s.fault), 4); err != nil {
		return err
	}
	if seen == 0 {
		return nil
	}
	if err := cu.MemsetD32(cu.DevicePtr(s.fault), 0, 1); err != nil {
		return err
	}
	return errIndex
}
