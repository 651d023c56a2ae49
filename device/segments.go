package device

import (
	"cmp"
	"errors"
	"math/bits"
	"slices"

	"headroom/memory"
)

// The usual segment sizes are multiples of a unit. The unit is a power of two,
// about a 2048th of the capacity, so that a device of a few MiB behaves like a
// large one. From 4 GiB on, the sizes are close to those that PyTorch
// documents: tensors up to 1 MiB share segments of 2 MiB, tensors up to 10 MiB
// share segments of up to 20 MiB, and a larger tensor has a segment of its own
// size, rounded up to 2 MiB.
const (
	minUnit       = 4 * memory.KiB
	maxUnit       = 2 * memory.MiB
	unitsOfMemory = 2048
	sharedUnits   = 10
)

func unitFor(capacity memory.Bytes) memory.Bytes {
	if capacity <= 0 {
		return maxUnit
	}
	unit := memory.Bytes(1) << (bits.Len64(uint64(capacity/unitsOfMemory)|1) - 1)
	return min(max(unit, minUnit), maxUnit)
}

// segmentFor returns the usual size of a segment for a block of size bytes. Models have
// many tensors of one size, so a segment that medium tensors share has room for a whole
// number of blocks of the first block's size. When all of these segments were 20 MiB, 12
// layers of GPT-2 lost 2 % of the peak to gaps that were too small for the next weight.
func (a *Allocator) segmentFor(size memory.Bytes) memory.Bytes {
	if size <= a.unit/2 {
		return a.unit
	}
	return roundUp(max(1, sharedUnits*a.unit/size)*size, a.unit)
}

// reserve returns a new segment as one free block that is in no pool yet. The
// segment has the usual size, or exactly size bytes if the usual size does not
// fit.
func (a *Allocator) reserve(size memory.Bytes, pool *freeTree) (*block, error) {
	n := a.segmentFor(size)
	addr, err := a.ask(n)
	if isOutOfMemory(err) && n > size {
		n = size
		addr, err = a.ask(n)
	}
	if err != nil {
		return nil, err
	}
	b := a.newBlock()
	b.addr, b.size, b.pool = addr, n, pool
	a.segments = append(a.segments, b)
	a.reserved += n
	a.peakReserved = max(a.peakReserved, a.reserved)
	return b, nil
}

// ask reserves n bytes from the source, if the limit allows that.
func (a *Allocator) ask(n memory.Bytes) (Addr, error) {
	if a.closed {
		return 0, errors.New("alloc: the device is closed")
	}
	if a.limit > 0 && n > a.limit-a.reserved {
		return 0, &memory.OutOfMemoryError{Requested: n}
	}
	return a.source.Reserve(n)
}

// reserveAgain empties the cache and calls reserve again, unless emptying gave
// nothing back.
func (a *Allocator) reserveAgain(size memory.Bytes, pool *freeTree) (*block, error) {
	emptied, err := a.EmptyCache()
	if err != nil {
		return nil, err
	}
	if emptied == 0 {
		return nil, &memory.OutOfMemoryError{Requested: size}
	}
	b, err := a.reserve(size, pool)
	if err == nil {
		a.retries++
	}
	return b, err
}

func isOutOfMemory(err error) bool {
	var oom *memory.OutOfMemoryError
	return err != nil && errors.As(err, &oom)
}

// EmptyCache implements [TensorAllocator]. A segment that the source fails to release
// stays reserved and usable. The other segments are released all the same, and the
// first error is returned.
func (a *Allocator) EmptyCache() (memory.Bytes, error) {
	var first error
	before := a.reserved
	a.segments = slices.DeleteFunc(a.segments, func(b *block) bool {
		if !b.free() || b.next != nil {
			return false
		}
		if err := a.source.Release(b.addr, b.size); err != nil {
			first = cmp.Or(first, err)
			return false
		}
		a.reserved -= b.size
		b.pool.remove(b)
		a.recycle(b)
		return true
	})
	return before - a.reserved, first
}

// SetLimit limits the bytes that may be reserved to n. If n is 0 or less, there is no
// limit. Stats reports the smaller of the limit and the source's own capacity as Capacity.
// If more than n is reserved already, unused segments are given back at once, and nothing
// more is reserved until enough tensors are freed to bring the amount below n. If the
// source fails to take a segment back, SetLimit returns that error; the limit applies all
// the same.
//
// The capacity determines the sizes of the segments that are reserved from now
// on. The unit is a 2048th of the capacity, rounded down to a power of two
// between 4 KiB and 2 MiB: tensors up to half a unit share segments of one
// unit, tensors up to five units share segments of about ten, and larger ones
// have their own.
func (a *Allocator) SetLimit(n memory.Bytes) error {
	a.limit = max(0, n)
	a.unit = unitFor(a.Stats().Capacity)
	if a.limit == 0 || a.reserved <= a.limit {
		return nil
	}
	_, err := a.EmptyCache()
	return err
}

// Close gives every segment back, even those that hold tensors, and returns the
// source's first error. Tensors are invalid afterwards: Free panics and Alloc
// returns an error. A second Close does nothing.
func (a *Allocator) Close() error {
	var first error
	for _, head := range a.segments {
		var n memory.Bytes
		for b := head; b != nil; b = b.next {
			n += b.size
		}
		first = cmp.Or(first, a.source.Release(head.addr, n))
	}
	a.segments, a.spare, a.small, a.large = nil, nil, freeTree{}, freeTree{}
	a.reserved, a.allocated, a.closed = 0, 0, true
	clear(a.live)
	return first
}
