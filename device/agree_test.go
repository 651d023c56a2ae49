package device

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"

	"headroom/memory"
)

// pair makes every call both on an Allocator and on a model, the simple implementation
// that the Allocator must agree with, each with its own source. It compares everything
// that a caller can see.
type pair struct {
	a       *Allocator
	source  *testSource // the one that a uses
	m       *model
	tensors []Tensor // live
}

func newPair(capacity memory.Bytes) *pair {
	s := &testSource{capacity: capacity}
	p := &pair{a: NewAllocator(s), source: s, m: &model{source: &testSource{capacity: capacity}}}
	if err := p.m.setLimit(0); err != nil {
		panic(err)
	}
	return p
}

func (p *pair) sources(do func(*testSource)) {
	do(p.source)
	do(p.m.source)
}

// sameError compares what a caller can see of two errors.
func sameError(got, want error) error {
	var g, w *memory.OutOfMemoryError
	if errors.As(got, &g) != errors.As(want, &w) || errors.Is(got, errBroken) != errors.Is(want, errBroken) ||
		(got == nil) != (want == nil) || g != nil && *g != *w {
		return fmt.Errorf("error %w, want %w", got, want)
	}
	return nil
}

func (p *pair) alloc(n int) error {
	got, err := p.a.Alloc(n, F32)
	want, wantErr := p.m.alloc(n)
	if err := sameError(err, wantErr); err != nil {
		return fmt.Errorf("alloc %d: %w", n, err)
	}
	if err == nil {
		if got != (Tensor{want, n, F32}) {
			return fmt.Errorf("alloc %d: %+v, want it at %#x", n, got, want)
		}
		p.tensors = append(p.tensors, got)
	}
	var full *memory.OutOfMemoryError
	if errors.As(err, &full) && full.Requested <= full.Stats.LargestFree {
		return fmt.Errorf("alloc %d: failed with room: %w", n, full)
	}
	return p.check()
}

func (p *pair) free(i int) error {
	if len(p.tensors) == 0 {
		return nil
	}
	i %= len(p.tensors)
	t := p.tensors[i]
	p.tensors[i] = p.tensors[len(p.tensors)-1]
	p.tensors = p.tensors[:len(p.tensors)-1]
	p.a.Free(t)
	p.m.free(t.Addr)
	return p.check()
}

func (p *pair) emptyCache() error {
	n, err := p.a.EmptyCache()
	want, wantErr := p.m.emptyCache()
	if n != want {
		return fmt.Errorf("emptied %d bytes, want %d", n, want)
	}
	return errors.Join(sameError(err, wantErr), p.check())
}

func (p *pair) setLimit(n memory.Bytes) error {
	return errors.Join(sameError(p.a.SetLimit(n), p.m.setLimit(n)), p.check())
}

func (p *pair) resetPeak() error {
	p.a.ResetPeak()
	p.m.peak, p.m.peakReserved = p.m.allocated(), p.m.reserved()
	return p.check()
}

func (p *pair) check() error {
	if err := p.a.check(); err != nil {
		return err
	}
	if got, want := p.a.Stats(), p.m.stats(); got != want {
		return fmt.Errorf("stats\n%+v, want\n%+v", got, want)
	}
	return nil
}

// close closes the allocator and checks that nothing stays reserved. It frees
// no tensors first, because a device may be closed with tensors in it.
func (p *pair) close() error {
	p.sources(func(s *testSource) { s.nextRelease = nil })
	if err := p.a.Close(); err != nil {
		return err
	}
	if n := p.source.used(); n != 0 {
		return fmt.Errorf("%d bytes still reserved after Close", n)
	}
	if s := p.a.Stats(); s.Reserved != 0 || s.Allocated != 0 || s.LargestFree != 0 {
		return fmt.Errorf("after Close: %+v", s)
	}
	return p.a.check()
}

// elements derives a tensor's number of elements from v. The tensor has at least one element and
// exceeds the capacity by at most a sixth. Small and large tensors are equally frequent.
func elements(v uint16, capacity memory.Bytes) int {
	scale := memory.Bytes(512) << (v % 16)
	n := scale * memory.Bytes(v>>4) / 4096
	return int(min(n, capacity*7/6)/4) + 1
}

// do performs the operation that op and v encode.
func (p *pair) do(op uint8, v uint16) error {
	capacity := p.m.source.capacity
	switch op % 16 {
	default:
		return p.alloc(elements(v, capacity))
	case 8, 9, 10, 11:
		return p.free(int(v))
	case 12:
		p.sources(func(s *testSource) { s.foreign = capacity * memory.Bytes(v) / (1 << 16) })
		return p.check()
	case 13:
		return p.setLimit(capacity * memory.Bytes(v) / (1 << 15) * memory.Bytes(v%2))
	case 14:
		if v%2 == 0 {
			return p.resetPeak()
		}
		return p.emptyCache()
	case 15:
		p.sources(func(s *testSource) { s.fault(v) })
		return p.check()
	}
}

// fault makes some of the next calls fail; the bits of v determine which ones
// and with which error.
func (s *testSource) fault(v uint16) {
	full := error(&memory.OutOfMemoryError{})
	s.nextReserve, s.nextRelease = nil, nil
	for ; v > 1; v >>= 3 {
		s.nextReserve = append(s.nextReserve, []error{nil, full, full, errBroken}[v%4])
		if v&4 != 0 {
			s.nextRelease = append(s.nextRelease, []error{nil, errBroken}[v%2])
		}
	}
}

var capacities = []memory.Bytes{64 << 10, 1 << 20, 6 << 20, 64<<20 + 512, 3 << 30, 80 << 30}

func FuzzAllocator(f *testing.F) {
	f.Add(uint8(0), []byte{})
	f.Add(uint8(2), []byte{0, 10, 200, 1, 14, 99, 8, 0, 0, 2, 1, 1, 14, 0, 1, 8, 0, 1})
	f.Add(uint8(1), []byte{0, 255, 255, 0, 207, 200, 15, 3, 9, 0, 30, 40, 13, 1, 9, 12, 128, 0, 0, 13, 13, 8, 1, 1, 14, 0, 3})
	f.Add(uint8(5), []byte{0, 0xff, 0xff, 3, 0x8f, 0x7d, 8, 0, 0, 0, 0x10, 3, 12, 0xff, 0xff, 0, 0x70, 0xf, 15, 7, 7, 2, 0xab, 0xcd})
	f.Fuzz(func(t *testing.T, capacity uint8, ops []byte) {
		p := newPair(capacities[int(capacity)%len(capacities)])
		for i := 0; i+2 < len(ops) && i < 3*500; i += 3 {
			if err := p.do(ops[i], uint16(ops[i+1])<<8|uint16(ops[i+2])); err != nil {
				t.Fatalf("operation %d: %v", i/3, err)
			}
		}
		if err := p.close(); err != nil {
			t.Fatal(err)
		}
	})
}

func TestAllocatorAgreesWithModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		capacity := rapid.SampledFrom(capacities).Draw(t, "capacity")
		p := newPair(capacity)
		must := func(err error) {
			if err != nil {
				t.Fatal(err)
			}
		}
		share := func(t *rapid.T) memory.Bytes {
			return capacity * memory.Bytes(rapid.IntRange(0, 100).Draw(t, "percent")) / 100
		}
		size := func(t *rapid.T) int { return elements(rapid.Uint16().Draw(t, "size"), capacity) }
		t.Repeat(map[string]func(*rapid.T){
			"":        func(*rapid.T) { must(p.check()) },
			"alloc":   func(t *rapid.T) { must(p.alloc(size(t))) },
			"alloc 2": func(t *rapid.T) { must(p.alloc(size(t))) },
			"exact":   func(*rapid.T) { must(p.alloc(int(max(4, p.m.stats().Free)) / 4)) },
			"free":    func(t *rapid.T) { must(p.free(rapid.IntRange(0, 1<<16).Draw(t, "which"))) },
			"empty":   func(*rapid.T) { must(p.emptyCache()) },
			"limit":   func(t *rapid.T) { must(p.setLimit(share(t))) },
			"foreign": func(t *rapid.T) { n := share(t); p.sources(func(s *testSource) { s.foreign = n }) },
			"fault":   func(t *rapid.T) { v := rapid.Uint16().Draw(t, "fault"); p.sources(func(s *testSource) { s.fault(v) }) },
			"reset":   func(*rapid.T) { must(p.resetPeak()) },
		})
		must(p.close())
	})
}

// TestLongRuns checks that the allocator agrees with the model in runs that are
// longer than those of the fuzz target and use more tensors.
func TestLongRuns(t *testing.T) {
	runs, length := 18, 2000
	if testing.Short() {
		runs, length = 6, 500
	}
	for seed := range runs {
		r := rand.New(rand.NewPCG(uint64(seed), 0))
		p := newPair(capacities[seed%len(capacities)])
		for i := range length {
			if err := p.do(uint8(r.Uint32()), uint16(r.Uint32())); err != nil {
				t.Fatalf("seed %d, operation %d: %v", seed, i, err)
			}
		}
		if err := p.close(); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
}
