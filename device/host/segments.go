package host

import (
	"cmp"
	"fmt"
	"slices"

	"headroom/device"
	"headroom/memory"
)

// segments is the device's memory: a [device.Source] that takes pages from the
// operating system up to a capacity. It keeps a list of the segments that it
// has handed out, so that an address is turned into a slice only if it lies in
// one of them.
type segments struct {
	capacity, foreign, reserved memory.Bytes
	held                        []segment // sorted by address
}

type segment struct {
	at  device.Addr
	mem []byte
}

// Reserve maps n bytes. The mapping begins at a page boundary, so it is aligned to 512
// bytes as [device.Source] requires.
func (s *segments) Reserve(n memory.Bytes) (device.Addr, error) {
	if free, _, _ := s.Room(); n > free {
		return 0, &memory.OutOfMemoryError{Requested: n}
	}
	mem, err := mapPages(n)
	if err != nil {
		return 0, err
	}
	at := address(mem)
	i, _ := s.find(at)
	s.held = slices.Insert(s.held, i, segment{at, mem})
	s.reserved += n
	return at, nil
}

// Release unmaps the segment of n bytes at a.
func (s *segments) Release(a device.Addr, n memory.Bytes) error {
	i, ok := s.find(a)
	if !ok || memory.Bytes(len(s.held[i].mem)) != n {
		return fmt.Errorf("release %v at %#x: not a segment of this device", n, uint64(a))
	}
	if err := unmapPages(s.held[i].mem); err != nil {
		return err
	}
	s.held = slices.Delete(s.held, i, i+1)
	s.reserved -= n
	return nil
}

// Room implements [device.Source]. Foreign is the amount that
// [Device.SetForeign] has set.
func (s *segments) Room() (free, capacity, foreign memory.Bytes) {
	return max(0, s.capacity-s.foreign-s.reserved), s.capacity, s.foreign
}

// bytes returns the n bytes at a, or nil if they are not within one segment.
func (s *segments) bytes(a device.Addr, n int) []byte {
	i, ok := s.find(a)
	if !ok {
		i-- // the segment that begins before a
	}
	if i < 0 {
		return nil
	}
	held := s.held[i]
	from := a - held.at
	if from > device.Addr(len(held.mem)) || device.Addr(n) > device.Addr(len(held.mem))-from {
		return nil
	}
	return held.mem[from:][:n]
}

func (s *segments) find(a device.Addr) (int, bool) {
	return slices.BinarySearchFunc(s.held, a, func(held segment, a device.Addr) int { return cmp.Compare(held.at, a) })
}
