package device

import (
	"cmp"
	"errors"
	"slices"

	"headroom/memory"
)

// model does what Allocator does, in the simplest way: it keeps the tensors of
// each segment and nothing else. Free blocks are the gaps between tensors;
// model searches for them again each time. It must agree with Allocator on
// every address and number.
type model struct {
	source             *testSource
	limit, unit        memory.Bytes
	segments           []*modelSegment
	peak, peakReserved memory.Bytes
	retries, failures  int64
}

type modelSegment struct {
	span
	small bool
	live  []span // sorted by address
}

// gaps returns the spans that the tensors of a segment leave free.
func (s *modelSegment) gaps() []span {
	var gaps []span
	at := s.addr
	for _, t := range append(slices.Clone(s.live), span{s.end(), 0}) {
		if t.addr > at {
			gaps = append(gaps, span{at, memory.Bytes(t.addr - at)})
		}
		at = t.end()
	}
	return gaps
}

func (m *model) setLimit(n memory.Bytes) error {
	m.limit = n
	capacity := m.source.capacity
	if n > 0 {
		capacity = min(n, capacity)
	}
	m.unit = 4 << 10
	for m.unit < 2<<20 && m.unit*2*2048 <= capacity {
		m.unit *= 2
	}
	if n == 0 || m.reserved() <= n {
		return nil
	}
	_, err := m.emptyCache()
	return err
}

// place puts a tensor of size bytes into the smallest gap of the pool that is
// large enough, if there is one.
func (m *model) place(size memory.Bytes, small bool) (Addr, bool) {
	var best span
	var home *modelSegment
	for _, s := range m.segments {
		for _, g := range s.gaps() {
			fits := s.small == small && g.size >= size
			if fits && (home == nil || g.size < best.size || g.size == best.size && g.addr < best.addr) {
				best, home = g, s
			}
		}
	}
	if home == nil {
		return 0, false
	}
	home.live = append(home.live, span{best.addr, size})
	slices.SortFunc(home.live, func(a, b span) int { return cmp.Compare(a.addr, b.addr) })
	m.peak = max(m.peak, m.allocated())
	return best.addr, true
}

func (m *model) reserve(size memory.Bytes, small bool) error {
	usual := (size + m.unit - 1) / m.unit * m.unit
	if small {
		usual = m.unit
	} else if many := 10 * m.unit / size; many > 1 {
		usual = (many*size + m.unit - 1) / m.unit * m.unit
	}
	var err error
	for _, n := range slices.Compact([]memory.Bytes{usual, size}) {
		var at Addr
		if m.limit > 0 && m.reserved()+n > m.limit {
			err = &memory.OutOfMemoryError{}
		} else if at, err = m.source.Reserve(n); err == nil {
			m.segments = append(m.segments, &modelSegment{span: span{at, n}, small: small})
			m.peakReserved = max(m.peakReserved, m.reserved())
			return nil
		}
		if !isFull(err) {
			return err
		}
	}
	return err
}

func isFull(err error) bool { return errors.As(err, new(*memory.OutOfMemoryError)) }

func (m *model) alloc(n int) (Addr, error) {
	size := (memory.Bytes(n)*4 + 511) / 512 * 512
	small := size <= m.unit/2
	if at, ok := m.place(size, small); ok {
		return at, nil
	}
	err := m.reserve(size, small)
	if isFull(err) {
		emptied, failed := m.emptyCache()
		if failed != nil {
			return 0, failed
		}
		if emptied > 0 {
			if err = m.reserve(size, small); err == nil {
				m.retries++
			}
		}
	}
	if err != nil && !isFull(err) {
		return 0, err
	}
	if at, ok := m.place(size, small); ok {
		return at, nil
	}
	if at, ok := m.place(size, !small); ok {
		return at, nil
	}
	m.failures++
	return 0, &memory.OutOfMemoryError{Requested: size, Stats: m.stats()}
}

func (m *model) free(at Addr) {
	for _, s := range m.segments {
		s.live = slices.DeleteFunc(s.live, func(t span) bool { return t.addr == at })
	}
}

func (m *model) emptyCache() (emptied memory.Bytes, first error) {
	m.segments = slices.DeleteFunc(m.segments, func(s *modelSegment) bool {
		if len(s.live) > 0 {
			return false
		}
		if err := m.source.Release(s.addr, s.size); err != nil {
			first = cmp.Or(first, err)
			return false
		}
		emptied += s.size
		return true
	})
	return emptied, first
}

func (m *model) reserved() (n memory.Bytes) {
	for _, s := range m.segments {
		n += s.size
	}
	return n
}

func (m *model) allocated() (n memory.Bytes) {
	for _, s := range m.segments {
		for _, t := range s.live {
			n += t.size
		}
	}
	return n
}

func (m *model) stats() memory.Stats {
	free, capacity, foreign := m.source.Room()
	if m.limit > 0 {
		free, capacity = max(0, min(free, m.limit-m.reserved())), min(capacity, m.limit)
	}
	var largest memory.Bytes
	for _, s := range m.segments {
		for _, g := range s.gaps() {
			largest = max(largest, g.size)
		}
	}
	return memory.Stats{
		Capacity: capacity, Free: free, Foreign: foreign, LargestFree: largest,
		Reserved: m.reserved(), Allocated: m.allocated(),
		Peak: m.peak, PeakReserved: m.peakReserved,
		Retries: m.retries, Failures: m.failures,
	}
}
