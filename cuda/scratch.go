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
	// chunkBytes is the room for the scores of one chunk of attention. Twice this size
	// still fits into the L2 cache of the larger GPUs. If the scores of rowsAChunk rows
	// need more room, a chunk has fewer rows.
	chunkBytes = 24 * memory.MiB
	// pieceBytes is the room for the pieces of reductions, and for the addresses
	// of batched matrix products.
	pieceBytes = 16 * memory.MiB
	// blasBytes is the size of cuBLAS's workspace; NVIDIA recommends 32 MiB for
	// Hopper. A workspace that only cuBLAS uses makes its results reproducible.
	blasBytes = 32 * memory.MiB
)

// scratch is memory for the intermediate results of operations. Like the
// driver's own memory it is reserved once, outside the allocator.
type scratch struct {
	base   cu.DevicePtr
	scores device.Addr // chunkBytes
	other  device.Addr // chunkBytes
	pieces device.Addr // pieceBytes
	blas   device.Addr // blasBytes
	fault  device.Addr // one int: 1 after an operation has seen an index outside its table
}

const scratchBytes = 2*chunkBytes + pieceBytes + blasBytes + 512

func (s *scratch) open() error {
	base, err := cu.MemAlloc(int64(scratchBytes))
	if errors.Is(err, cu.OutOfMemory) {
		free, total, _ := cu.MemInfo() // if this fails, the error lacks only these numbers
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

// errIndex reports that an operation found an index outside its table.
var errIndex = errors.New("a token or target is outside [0, classes)")

// takeFault returns errIndex if an operation has set the fault word since the
// last call, and clears the word.
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
