package device

import (
	"errors"
	"math"
	"strings"
	"testing"

	"headroom/memory"
)

const (
	kib = 1 << 10 / 4 // F32 elements in 1 KiB
	mib = 1 << 20 / 4
)

// open returns an allocator and its source. The allocator's bookkeeping is
// checked when the test ends.
func open(t testing.TB, capacity memory.Bytes) (*Allocator, *testSource) {
	t.Helper()
	s := &testSource{capacity: capacity}
	a := NewAllocator(s)
	t.Cleanup(func() {
		if err := a.check(); err != nil {
			t.Error(err)
		}
	})
	return a, s
}

func must(t testing.TB) func(Tensor, error) Tensor {
	return func(x Tensor, err error) Tensor {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return x
	}
}

func outOfMemory(t *testing.T, err error) *memory.OutOfMemoryError {
	t.Helper()
	var oom *memory.OutOfMemoryError
	if !errors.As(err, &oom) {
		t.Fatalf("error %v, want one of memory", err)
	}
	return oom
}

// panics returns the text of the *ShapeError with which f panics.
func panics(t *testing.T, f func()) (text string) {
	t.Helper()
	defer func() {
		t.Helper()
		err, ok := recover().(*ShapeError)
		if !ok {
			t.Fatal("did not panic with a *ShapeError")
		}
		text = err.Error()
	}()
	f()
	return ""
}

// TestSizesGoByType: Allocated counts bytes, so it depends on the size of a
// tensor's type.
func TestSizesGoByType(t *testing.T) {
	a, _ := open(t, 64<<20)
	for _, c := range []struct {
		n    int
		d    DType
		want memory.Bytes
	}{
		{128, F32, 512}, {129, F32, 1024}, {128, I32, 512}, {129, I32, 1024}, {256, BF16, 512}, {257, BF16, 1024},
	} {
		x := must(t)(a.Alloc(c.n, c.d))
		if got := a.Stats().Allocated; got != c.want || x.DType != c.d || x.Len != c.n {
			t.Errorf("%d of %v: %+v counts as %d bytes, want %d", c.n, c.d, x, got, c.want)
		}
		a.Free(x)
	}
}

// TestStats checks every statistic at each stage of an allocator's life.
func TestStats(t *testing.T) {
	a, s := open(t, 64<<20)
	base := memory.Stats{Capacity: 64 << 20, Free: 64 << 20}
	want := func(when string, change func(*memory.Stats)) {
		t.Helper()
		change(&base)
		if got := a.Stats(); got != base {
			t.Fatalf("%s:\n%+v, want\n%+v", when, got, base)
		}
	}
	want("new", func(*memory.Stats) {})

	x := must(t)(a.Alloc(100*kib, F32)) // a segment of 320 KiB has room for three
	want("alloc", func(s *memory.Stats) {
		s.Reserved, s.Allocated, s.LargestFree, s.Free = 320<<10, 100<<10, 220<<10, 64<<20-320<<10
		s.Peak, s.PeakReserved = s.Allocated, s.Reserved
	})
	y := must(t)(a.Alloc(1, I32))
	want("small", func(s *memory.Stats) {
		s.Reserved, s.Allocated, s.Free = 352<<10, 100<<10+512, 64<<20-352<<10
		s.Peak, s.PeakReserved = s.Allocated, s.Reserved
	})
	a.Free(x)
	want("free", func(s *memory.Stats) { s.Allocated, s.LargestFree = 512, 320<<10 })
	s.foreign = 60 << 20
	want("pressure", func(s *memory.Stats) { s.Foreign, s.Free = 60<<20, 4<<20-352<<10 })
	if n, err := a.EmptyCache(); n != 320<<10 || err != nil {
		t.Fatal(n, err)
	}
	want("empty", func(s *memory.Stats) { s.Reserved, s.LargestFree, s.Free = 32<<10, 32<<10-512, 4<<20-32<<10 })
	a.ResetPeak()
	want("reset", func(s *memory.Stats) { s.Peak, s.PeakReserved = s.Allocated, s.Reserved })
	if err := a.SetLimit(1 << 20); err != nil {
		t.Fatal(err)
	}
	want("limit", func(s *memory.Stats) { s.Capacity, s.Free = 1<<20, 1<<20-32<<10 })
	a.Free(y)
	want("free", func(s *memory.Stats) { s.Allocated, s.LargestFree = 0, 32<<10 })
}

func TestOutOfMemory(t *testing.T) {
	a, s := open(t, 8<<20)
	x := must(t)(a.Alloc(3*mib, F32))
	a.Free(must(t)(a.Alloc(4*mib, F32)))
	_, err := a.Alloc(5*mib+1, F32)
	oom := outOfMemory(t, err)
	want := memory.Stats{Capacity: 8 << 20, Free: 5 << 20, Reserved: 3 << 20, Allocated: 3 << 20,
		Peak: 7 << 20, PeakReserved: 7 << 20, Failures: 1}
	if oom.Requested != 5<<20+512 || oom.Stats != want {
		t.Errorf("failed with %+v, want stats %+v", oom, want)
	}
	y := must(t)(a.Alloc(5*mib, F32))
	if got := a.Stats(); got.Free != 0 || got.Retries != 0 {
		t.Errorf("a fit to the last byte: %+v", got)
	}
	a.Free(x)
	a.Free(y)
	must(t)(a.Alloc(6*mib, F32))
	if got := a.Stats(); got.Retries != 1 || got.Failures != 1 || s.used() != 6<<20 {
		t.Errorf("after a retry: %+v, source %d", got, s.used())
	}
	for _, n := range []int{math.MaxInt, math.MaxInt / 4, math.MaxInt / 8, 1 << 60} {
		_, err := a.Alloc(n, F32)
		if oom := outOfMemory(t, err); oom.Requested < maxBytes/8 {
			t.Errorf("%d elements: %+v", n, oom)
		}
	}
}

// TestGapOfTheOtherKind: when nothing more can be reserved, a small tensor goes
// into a gap in a segment for large ones.
func TestGapOfTheOtherKind(t *testing.T) {
	a, s := open(t, 64<<20)
	must(t)(a.Alloc(100*kib, F32))
	s.foreign = 64 << 20
	x := must(t)(a.Alloc(1, F32))
	if got := a.Stats(); got.Reserved != 320<<10 || got.Allocated != 100<<10+512 {
		t.Errorf("%+v", got)
	}
	a.Free(x)
	if got := a.Stats().LargestFree; got != 220<<10 {
		t.Errorf("largest free block %v", got)
	}
}

// TestOtherErrors: an error that is not about memory is returned unchanged, and
// does not cause the cache to be emptied.
func TestOtherErrors(t *testing.T) {
	a, s := open(t, 8<<20)
	a.Free(must(t)(a.Alloc(mib, F32)))
	s.nextReserve = []error{errBroken}
	if _, err := a.Alloc(2*mib, F32); !errors.Is(err, errBroken) || a.Stats().Reserved != 1<<20 {
		t.Errorf("error %v, %v reserved", err, a.Stats().Reserved)
	}
	s.nextRelease = []error{errBroken}
	if _, err := a.Alloc(8*mib, F32); !errors.Is(err, errBroken) {
		t.Errorf("error %v from a release", err)
	}
	s.nextReserve = []error{&memory.OutOfMemoryError{}, errBroken}
	if _, err := a.Alloc(mib+1, F32); !errors.Is(err, errBroken) {
		t.Errorf("error %v at the second try", err)
	}
	if got := a.Stats(); got.Failures != 0 || got.Retries != 0 {
		t.Errorf("%+v", got)
	}
	must(t)(a.Alloc(8*mib, F32))

	a, s = open(t, 8<<20)
	x, y := must(t)(a.Alloc(mib, F32)), must(t)(a.Alloc(2*mib, F32))
	z := must(t)(a.Alloc(3*mib, F32))
	a.Free(x)
	a.Free(y)
	a.Free(z)
	s.nextRelease = []error{errBroken, nil, errors.New("a later one")}
	if n, err := a.EmptyCache(); !errors.Is(err, errBroken) || n != 2<<20 {
		t.Errorf("error %v after %v were given back", err, n)
	}
}

func TestMistakesPanic(t *testing.T) {
	a, _ := open(t, 8<<20)
	x := must(t)(a.Alloc(1000, F32))
	y := must(t)(a.Alloc(1000, F32))
	a.Free(y)
	for _, c := range []struct {
		want string
		f    func()
	}{
		{"nothing is allocated", func() { a.Free(y) }},
		{"nothing is allocated", func() { a.Free(Tensor{}) }},
		{"nothing is allocated", func() { a.Free(x.View(1, 2)) }},
		{"are only a view: 1000 elements of F32 are allocated there", func() { a.Free(x.View(0, 999)) }},
		{"1000 elements of I32 at", func() { a.Free(Tensor{x.Addr, 1000, I32}) }},
		{"0 elements", func() { _, _ = a.Alloc(0, F32) }},
		{"-1 elements", func() { _, _ = a.Alloc(-1, F32) }},
		{"DType(9)", func() { _, _ = a.Alloc(1, DType(9)) }},
	} {
		if got := panics(t, c.f); !strings.Contains(got, c.want) {
			t.Errorf("panic %q, want %q", got, c.want)
		}
	}
	if got := a.Stats().Allocated; got != 4096 {
		t.Errorf("%v allocated afterwards", got)
	}
	a.Free(x)
}
