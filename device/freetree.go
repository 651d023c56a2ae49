package device

import (
	"cmp"

	"headroom/memory"
)

// block is a piece of a segment: the memory of one tensor, or a gap between
// tensors. The blocks of a segment tile it, and no two neighbours are both
// free.
type block struct {
	addr       Addr
	size       memory.Bytes
	prev, next *block    // neighbours in the segment
	pool       *freeTree // where the block goes when it is free
	tensor     Tensor    // what lives here; the zero Tensor while the block is free

	left, right *block // children in the pool's tree, while the block is free
	priority    uint64
}

func (b *block) free() bool { return !b.tensor.Valid() }

// before reports whether b comes before c when blocks are ordered by size and,
// among equal sizes, by address. The first block in this order that is large
// enough is therefore the best fit and, among blocks of equal size, the one
// with the lowest address. So tensors collect at low addresses, and high
// addresses become free.
func (b *block) before(c *block) bool {
	return b.size < c.size || b.size == c.size && b.addr < c.addr
}

// freeTree holds the free blocks of a pool: a treap (Seidel and Aragon, 1996)
// whose links are in the blocks, so that it never allocates. Priorities are a
// hash of the address, so that the same calls give the same tree.
type freeTree struct{ root *block }

// priority hashes an address with the finalizer of MurmurHash3, which gives
// very different values to addresses that differ in few bits.
func priority(a Addr) uint64 {
	h := uint64(a)
	h = (h ^ h>>33) * 0xff51afd7ed558ccd
	h = (h ^ h>>33) * 0xc4ceb9fe1a85ec53
	return h ^ h>>33
}

func (t *freeTree) insert(b *block) {
	b.priority = priority(b.addr)
	at := &t.root
	for *at != nil && (*at).priority >= b.priority {
		at = (*at).towards(b)
	}
	rest, below, above := *at, &b.left, &b.right
	*at = b
	for rest != nil {
		if rest.before(b) {
			*below, below, rest = rest, &rest.right, rest.right
		} else {
			*above, above, rest = rest, &rest.left, rest.left
		}
	}
	*below, *above = nil, nil
}

// remove removes b from the tree, which must contain it.
func (t *freeTree) remove(b *block) {
	at := &t.root
	for *at != b {
		at = (*at).towards(b)
	}
	below, above := b.left, b.right
	for below != nil && above != nil {
		if below.priority >= above.priority {
			*at, at, below = below, &below.right, below.right
		} else {
			*at, at, above = above, &above.left, above.left
		}
	}
	*at = cmp.Or(below, above)
	b.left, b.right = nil, nil
}

// towards returns the child link of b that leads to c.
func (b *block) towards(c *block) **block {
	if c.before(b) {
		return &b.left
	}
	return &b.right
}

// take removes and returns the smallest block of at least n bytes. It returns
// nil if there is none.
func (t *freeTree) take(n memory.Bytes) *block {
	var best *block
	for b := t.root; b != nil; {
		if b.size >= n {
			best, b = b, b.left
		} else {
			b = b.right
		}
	}
	if best != nil {
		t.remove(best)
	}
	return best
}

// largest returns the size of the largest block, or 0 if there is none.
func (t *freeTree) largest() memory.Bytes {
	var size memory.Bytes
	for b := t.root; b != nil; b = b.right {
		size = b.size
	}
	return size
}
