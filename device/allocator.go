package device

import (
	"fmt"
	"math"

	"headroom/memory"
)

// Allocator is the caching allocator of every device: it reserves segments from
// a [Source], cuts tensors out of them, and keeps freed memory for later
// tensors, because asking a driver for memory takes far longer than using the
// tensor. It implements [TensorAllocator], and a device embeds it. It is not
// safe for concurrent use.
//
// Sizes are rounded up to 512 bytes, and a tensor holds exactly its rounded
// size: Allocated, and so Peak, depend on the calls alone and not on what the
// cache holds. A tensor goes into the smallest free block that holds it; the
// rest of the block is split off; a freed block joins its free neighbours. All
// of that takes O(log n) time, where n is the number of free blocks, and makes
// no garbage.
//
// These rules keep the peak of Reserved close to the peak of Allocated:
//
//   - Small tensors, which tend to live long, are kept in separate segments, so
//     that they do not end up in the middle of space for large ones.
//   - Medium tensors share segments; large ones each get one of their own size.
//     What counts as large depends on the capacity: see [Allocator.SetLimit].
//   - When a segment of the usual size does not fit, one of exactly the size
//     asked for is tried. When that does not fit either, unused segments are
//     given back and both are tried again. When nothing can be reserved, a
//     small tensor goes into a gap among larger ones, and a larger tensor into
//     a gap among small ones.
//
// Memory that is freed may be handed out again at once, and an unused segment
// may be released at any Alloc. A device whose operations run some time after
// the call must run them in order, and its Source must wait for them in
// Release.
type Allocator struct {
	source       Source
	limit        memory.Bytes // 0 is no limit
	unit         memory.Bytes // usual segment sizes are multiples of it
	small, large freeTree
	live         map[Addr]*block
	segments     []*block // the first block of each segment, oldest segment first
	spare        *block   // unused block structs, linked by next
	closed       bool

	reserved, allocated memory.Bytes
	peakReserved, peak  memory.Bytes
	retries, failures   int64
}

// NewAllocator returns an allocator that takes its memory from s. It holds
// nothing yet and has no limit of its own.
func NewAllocator(s Source) *Allocator {
	a := &Allocator{source: s, live: map[Addr]*block{}}
	a.unit = unitFor(a.Stats().Capacity)
	return a
}

const (
	granule = 512 // bytes; every block is a multiple of it

	// maxBytes is more than any device has, and small enough for sums not to
	// overflow.
	maxBytes memory.Bytes = math.MaxInt64 / 4
)

func roundUp(n, to memory.Bytes) memory.Bytes { return (n + to - 1) / to * to }

// Alloc implements [TensorAllocator]. In a *memory.OutOfMemoryError, Requested is the
// size rounded up to 512 bytes. An error of the source that is not about memory is
// returned unchanged. Alloc panics with a *[ShapeError] if n is not positive or t is
// not a valid type.
func (a *Allocator) Alloc(n int, t DType) (Tensor, error) {
	if n <= 0 || t != I32 && !t.Float() {
		panic(&ShapeError{Op: "Alloc", Text: fmt.Sprintf("%d elements of %v: must be at least 1 element of F32, BF16 or I32", n, t)})
	}
	size := maxBytes
	if n < int(maxBytes)/t.Size() {
		size = roundUp(memory.Bytes(n*t.Size()), granule)
	}
	b, err := a.find(size)
	if err != nil {
		return Tensor{}, err
	}
	a.split(b, size)
	b.tensor = Tensor{Addr: b.addr, Len: n, DType: t}
	a.live[b.addr] = b
	a.allocated += size
	a.peak = max(a.peak, a.allocated)
	return b.tensor, nil
}

// find returns a free block of at least size bytes, either taken out of its
// pool or newly reserved.
func (a *Allocator) find(size memory.Bytes) (*block, error) {
	pool, other := &a.large, &a.small
	if size <= a.unit/2 {
		pool, other = other, pool
	}
	if b := pool.take(size); b != nil {
		return b, nil
	}
	b, err := a.reserve(size, pool)
	if isOutOfMemory(err) {
		b, err = a.reserveAgain(size, pool)
	}
	if !isOutOfMemory(err) {
		return b, err
	}
	if b := other.take(size); b != nil {
		return b, nil
	}
	a.failures++
	return nil, &memory.OutOfMemoryError{Requested: size, Stats: a.Stats()}
}

// split cuts b down to size bytes. The rest becomes a free block.
func (a *Allocator) split(b *block, size memory.Bytes) {
	if b.size == size {
		return
	}
	rest := a.newBlock()
	rest.addr, rest.size, rest.pool = b.addr+Addr(size), b.size-size, b.pool
	rest.prev, rest.next = b, b.next
	if b.next != nil {
		b.next.prev = rest
	}
	b.size, b.next = size, rest
	rest.pool.insert(rest)
}

// Free implements [TensorAllocator]. It panics with a *[ShapeError] if t is not
// allocated or is a view.
func (a *Allocator) Free(t Tensor) {
	b := a.live[t.Addr]
	if b == nil {
		panic(&ShapeError{Op: "Free", Text: fmt.Sprintf("nothing is allocated at %#x: freed twice, or a view", uint64(t.Addr))})
	}
	if b.tensor != t {
		panic(&ShapeError{Op: "Free", Text: fmt.Sprintf("%d elements of %v at %#x are only a view: %d elements of %v are allocated there",
			t.Len, t.DType, uint64(t.Addr), b.tensor.Len, b.tensor.DType)})
	}
	delete(a.live, t.Addr)
	a.allocated -= b.size
	b.tensor = Tensor{}
	if next := b.next; next != nil && next.free() {
		next.pool.remove(next)
		a.join(b, next)
	}
	if prev := b.prev; prev != nil && prev.free() {
		prev.pool.remove(prev)
		a.join(prev, b)
		b = prev
	}
	b.pool.insert(b)
}

// join merges b and its neighbour next into one block. The first block of a
// segment stays the first.
func (a *Allocator) join(b, next *block) {
	b.size += next.size
	b.next = next.next
	if b.next != nil {
		b.next.prev = b
	}
	a.recycle(next)
}

func (a *Allocator) newBlock() *block {
	b := a.spare
	if b == nil {
		return new(block)
	}
	a.spare = b.next
	*b = block{}
	return b
}

func (a *Allocator) recycle(b *block) {
	*b = block{next: a.spare}
	a.spare = b
}

// Stats implements [TensorAllocator]. Allocated counts sizes rounded up to 512 bytes.
func (a *Allocator) Stats() memory.Stats {
	free, capacity, foreign := a.source.Room()
	if a.limit > 0 {
		free = min(free, max(0, a.limit-a.reserved))
		capacity = min(capacity, a.limit)
	}
	return memory.Stats{
		Capacity:     capacity,
		Free:         free,
		Reserved:     a.reserved,
		Allocated:    a.allocated,
		LargestFree:  max(a.small.largest(), a.large.largest()),
		Foreign:      foreign,
		Peak:         a.peak,
		PeakReserved: a.peakReserved,
		Retries:      a.retries,
		Failures:     a.failures,
	}
}

// ResetPeak implements [TensorAllocator].
func (a *Allocator) ResetPeak() { a.peak, a.peakReserved = a.allocated, a.reserved }
