package device

import (
	"errors"
	"testing"

	"headroom/memory"
)

func TestSegmentSizes(t *testing.T) {
	for _, c := range []struct {
		capacity memory.Bytes
		elements int
		want     memory.Bytes
	}{
		{80 << 30, 1, 2 << 20},
		{80 << 30, mib, 2 << 20},
		{80 << 30, mib + 1, 20 << 20}, // 19 of 1 MiB + 512 B
		{80 << 30, 6 * mib, 18 << 20},
		{80 << 30, 7 * mib, 14 << 20},
		{80 << 30, 10 * mib, 20 << 20},
		{80 << 30, 10*mib + 1, 12 << 20},
		{80 << 30, 101 * mib, 102 << 20},
		{4 << 30, 1, 2 << 20},
		{4<<30 - 512, 1, 1 << 20},
		{64 << 20, 1, 32 << 10},
		{64 << 20, 100 * kib, 320 << 10},
		{8 << 20, 1, 4 << 10},
		{1 << 20, 1, 4 << 10},
		{1 << 20, 30 * kib, 32 << 10},
		{2048, 1, 512},
	} {
		a, _ := open(t, c.capacity)
		must(t)(a.Alloc(c.elements, F32))
		if got := a.Stats().Reserved; got != c.want {
			t.Errorf("capacity %v: %d elements reserved %v, want %v", c.capacity, c.elements, got, c.want)
		}
	}
}

func TestUnit(t *testing.T) {
	for capacity, want := range map[memory.Bytes]memory.Bytes{
		0: 2 << 20, 1: 4 << 10, 16 << 20: 8 << 10, 24 << 20: 8 << 10, 1 << 30: 512 << 10, 1 << 62: 2 << 20,
	} {
		if got := unitFor(capacity); got != want {
			t.Errorf("capacity %v: unit %v, want %v", capacity, got, want)
		}
	}
}

func TestSetLimit(t *testing.T) {
	a, s := open(t, 64<<20)
	x := must(t)(a.Alloc(4*mib, F32))
	a.Free(must(t)(a.Alloc(8*mib, F32)))
	if err := a.SetLimit(12 << 20); err != nil || s.used() != 12<<20 {
		t.Fatalf("a limit that holds emptied the cache: %v, %d held", err, s.used())
	}
	if err := a.SetLimit(2 << 20); err != nil || s.used() != 4<<20 {
		t.Fatalf("below what is reserved: %v, %d held", err, s.used())
	}
	_, err := a.Alloc(1, F32)
	if oom := outOfMemory(t, err); oom.Stats.Free != 0 || oom.Stats.Capacity != 2<<20 {
		t.Errorf("%+v", oom)
	}
	a.Free(x)
	must(t)(a.Alloc(2*mib, F32)) // in a segment that is reserved already
	must(t)(a.Alloc(1, F32))
	if err := a.SetLimit(0); err != nil {
		t.Fatal(err)
	}
	must(t)(a.Alloc(60*mib, F32))
	if got := a.Stats(); got.Capacity != 64<<20 || got.Free != 0 {
		t.Errorf("no limit: %+v", got)
	}

	a, s = open(t, 64<<20)
	a.Free(must(t)(a.Alloc(8*mib, F32)))
	s.nextRelease = []error{errBroken}
	if err := a.SetLimit(1); !errors.Is(err, errBroken) || a.Stats().Capacity != 1 {
		t.Errorf("error %v, %+v", err, a.Stats())
	}
}

func TestClose(t *testing.T) {
	a, s := open(t, 8<<20)
	x := must(t)(a.Alloc(mib, F32))
	must(t)(a.Alloc(1, F32))
	s.nextRelease = []error{errBroken, errors.New("a later one")}
	if err := a.Close(); !errors.Is(err, errBroken) || len(s.held) != 2 {
		t.Errorf("error %v, %d segments held", err, len(s.held))
	}
	if err := a.Close(); err != nil {
		t.Errorf("a second Close: %v", err)
	}
	if _, err := a.Alloc(1, F32); err == nil || isOutOfMemory(err) {
		t.Errorf("alloc after Close: %v", err)
	}
	panics(t, func() { a.Free(x) })
}
