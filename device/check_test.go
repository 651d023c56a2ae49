package device

import (
	"errors"
	"fmt"

	"headroom/memory"
)

// check looks for contradictions in the allocator's bookkeeping.
func (a *Allocator) check() error {
	var reserved, allocated memory.Bytes
	live := 0
	free := map[*freeTree]int{}
	for _, head := range a.segments {
		if head.prev != nil {
			return fmt.Errorf("segment at %#x does not begin with its first block", head.addr)
		}
		for b := head; b != nil; b = b.next {
			if err := a.checkBlock(b); err != nil {
				return fmt.Errorf("block of %d bytes at %#x: %w", b.size, b.addr, err)
			}
			reserved += b.size
			if b.free() {
				free[b.pool]++
			} else {
				allocated += b.size
				live++
			}
		}
	}
	if err := errors.Join(a.small.check(free[&a.small]), a.large.check(free[&a.large])); err != nil {
		return err
	}
	s := a.Stats()
	switch {
	case live != len(a.live):
		return fmt.Errorf("%d blocks hold tensors, %d are known", live, len(a.live))
	case reserved != s.Reserved || allocated != s.Allocated:
		return fmt.Errorf("blocks sum to %d reserved, %d allocated; stats say %+v", reserved, allocated, s)
	case s.Allocated > s.Peak || s.Reserved > s.PeakReserved || s.Peak > s.PeakReserved:
		return fmt.Errorf("peaks contradict amounts: %+v", s)
	case s.LargestFree > s.Reserved-s.Allocated || (s.LargestFree == 0) != (s.Reserved == s.Allocated):
		return fmt.Errorf("largest free block contradicts amounts: %+v", s)
	}
	return nil
}

func (a *Allocator) checkBlock(b *block) error {
	switch {
	case b.size <= 0 || b.size%granule != 0 || b.addr%granule != 0:
		return errors.New("not whole granules")
	case b.pool != &a.small && b.pool != &a.large:
		return errors.New("of no pool")
	case !b.free() && a.live[b.addr] != b:
		return errors.New("holds a tensor that is not known")
	case !b.free() && (b.tensor.Addr != b.addr || roundUp(b.tensor.Bytes(), granule) != b.size):
		return fmt.Errorf("does not fit its tensor %+v", b.tensor)
	case b.next == nil:
		return nil
	case b.next.prev != b || b.next.addr != b.addr+Addr(b.size) || b.next.pool != b.pool:
		return errors.New("does not meet the next block")
	case b.free() && b.next.free():
		return errors.New("is free and so is the next block")
	}
	return nil
}

// check looks for contradictions in the blocks of a pool. The pool should hold
// want blocks.
func (t *freeTree) check(want int) error {
	var last *block
	n := 0
	var walk func(b *block) error
	walk = func(b *block) error {
		if b == nil {
			return nil
		}
		if err := walk(b.left); err != nil {
			return err
		}
		if last != nil && !last.before(b) {
			return fmt.Errorf("pool: %d bytes at %#x come after %d at %#x", b.size, b.addr, last.size, last.addr)
		}
		if !b.free() || b.pool != t {
			return fmt.Errorf("pool: the block at %#x does not belong here", b.addr)
		}
		for _, child := range []*block{b.left, b.right} {
			if child != nil && child.priority > b.priority {
				return fmt.Errorf("pool: priorities at %#x out of order", b.addr)
			}
		}
		last, n = b, n+1
		return walk(b.right)
	}
	if err := walk(t.root); err != nil {
		return err
	}
	if n != want {
		return fmt.Errorf("pool: holds %d blocks of %d", n, want)
	}
	return nil
}
