package device

import (
	"errors"
	"slices"
	"testing"

	"headroom/memory"
)

// deviceOf is a device that has memory and nothing else.
type deviceOf struct {
	Device
	a *Allocator
}

func (d deviceOf) Alloc(n int, t DType) (Tensor, error) { return d.a.Alloc(n, t) }
func (d deviceOf) Free(t Tensor)                        { d.a.Free(t) }
func (d deviceOf) Stats() memory.Stats                  { return d.a.Stats() }

func TestFaulty(t *testing.T) {
	a, s := open(t, 8<<20)
	old := must(t)(a.Alloc(1, F32))
	f := NewFaulty(deviceOf{a: a})
	try := func(n int) (failed []int) {
		for i := 1; i <= n; i++ {
			before, reserves := a.Stats(), s.reserves
			x, err := f.Alloc(i*1000, F32)
			if err == nil {
				f.Free(x)
				continue
			}
			failed = append(failed, i)
			before.Failures = int64(f.Injected())
			if oom := outOfMemory(t, err); oom.Requested != memory.Bytes(i*4000) || oom.Stats != before || x.Valid() {
				t.Errorf("call %d: %v and %+v, want stats %+v", i, x, oom, before)
			}
			if s.reserves != reserves {
				t.Errorf("call %d reached the device", i)
			}
		}
		if f.Count() != n {
			t.Errorf("counted %d of %d calls", f.Count(), n)
		}
		return failed
	}
	for _, c := range []struct {
		choose func()
		want   []int
	}{
		{func() {}, nil},
		{func() { f.FailAt(1, 3, 9) }, []int{1, 3}},
		{func() { f.FailAt(5) }, []int{5}},
		{func() { f.FailIf(func(nth int, size memory.Bytes) bool { return nth > 2 && size <= 16000 }) }, []int{3, 4}},
		{func() { f.FailIf(nil) }, nil},
		{func() { f.FailAt() }, nil},
	} {
		c.choose()
		if got := try(5); !slices.Equal(got, c.want) {
			t.Errorf("calls %v failed, want %v", got, c.want)
		}
		f.FailAt()
	}
	if got := f.Stats().Failures; got != 5 || f.Injected() != 5 {
		t.Errorf("%d failures, %d injected", got, f.Injected())
	}

	x := must(t)(f.Alloc(10, I32))
	if _, err := f.Alloc(9*mib, F32); err == nil || errors.Is(err, errBroken) {
		t.Errorf("a true failure: %v", err)
	}
	f.Free(old)
	if f.Live() != 1 || f.LiveBytes() != 40 {
		t.Errorf("%d live with %v", f.Live(), f.LiveBytes())
	}
	f.Free(x)
	if f.Live() != 0 || f.LiveBytes() != 0 || a.Stats().Allocated != 0 {
		t.Errorf("%d live with %v", f.Live(), f.LiveBytes())
	}
}
