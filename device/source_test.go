package device

import (
	"errors"
	"fmt"
	"slices"

	"headroom/memory"
)

var errBroken = errors.New("source: the device is broken")

// span is a piece of address space.
type span struct {
	addr Addr
	size memory.Bytes
}

func (s span) end() Addr { return s.addr + Addr(s.size) }

// testSource hands out the lowest addresses that are free, so that segments touch and
// addresses are reused. nextReserve and nextRelease hold the errors that the next calls
// to Reserve and Release return; where an error is nil, the call goes ahead.
type testSource struct {
	capacity, foreign memory.Bytes
	held              []span // sorted by address
	nextReserve       []error
	nextRelease       []error
	reserves          int
}

func (s *testSource) used() (n memory.Bytes) {
	for _, h := range s.held {
		n += h.size
	}
	return n
}

func (s *testSource) Room() (free, capacity, foreign memory.Bytes) {
	return max(0, s.capacity-s.foreign-s.used()), s.capacity, s.foreign
}

func pop(queue *[]error) error {
	if len(*queue) == 0 {
		return nil
	}
	err := (*queue)[0]
	*queue = (*queue)[1:]
	return err
}

func (s *testSource) Reserve(n memory.Bytes) (Addr, error) {
	s.reserves++
	if err := pop(&s.nextReserve); err != nil {
		return 0, err
	}
	if free, _, _ := s.Room(); n > free {
		return 0, fmt.Errorf("reserve: %w", &memory.OutOfMemoryError{Requested: n})
	}
	at, i := Addr(granule), 0
	for ; i < len(s.held) && s.held[i].addr-at < Addr(n); i++ {
		at = s.held[i].end()
	}
	s.held = slices.Insert(s.held, i, span{at, n})
	return at, nil
}

func (s *testSource) Release(a Addr, n memory.Bytes) error {
	if err := pop(&s.nextRelease); err != nil {
		return err
	}
	i := slices.Index(s.held, span{a, n})
	if i < 0 {
		panic(fmt.Sprintf("released what was not reserved: %d bytes at %#x", n, uint64(a)))
	}
	s.held = slices.Delete(s.held, i, i+1)
	return nil
}
