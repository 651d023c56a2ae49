package devicetest

import (
	"errors"
	"slices"
	"testing"

	"headroom/device"
	"headroom/device/host"
	"headroom/memory"
)

// asked is a device that counts the calls of its Alloc.
type asked struct {
	device.Device
	calls int
}

func (d *asked) Alloc(n int, t device.DType) (device.Tensor, error) {
	d.calls++
	return d.Device.Alloc(n, t)
}

func TestFaulty(t *testing.T) {
	opened, err := host.Open(host.Options{Capacity: 8 * memory.MiB})
	if err != nil {
		t.Fatal(err)
	}
	d := &asked{Device: opened}
	defer func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}()
	old, err := d.Alloc(1, device.F32)
	if err != nil {
		t.Fatal(err)
	}
	f := NewFaulty(d)
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
		if got := failing(t, f, d, 5); !slices.Equal(got, c.want) {
			t.Errorf("calls %v failed, want %v", got, c.want)
		}
		f.FailAt()
	}
	if got := f.Stats().Failures; got != 5 || f.Injected() != 5 {
		t.Errorf("%d failures, %d injected", got, f.Injected())
	}
	countsLive(t, f, old)
}

// failing makes n allocations and returns the numbers of those that failed,
// counted from 1.
func failing(t *testing.T, f *Faulty, d *asked, n int) (failed []int) {
	t.Helper()
	for i := 1; i <= n; i++ {
		before, calls := d.Stats(), d.calls
		x, err := f.Alloc(i*1000, device.F32)
		if err == nil {
			f.Free(x)
			continue
		}
		failed = append(failed, i)
		before.Failures = int64(f.Injected())
		var oom *memory.OutOfMemoryError
		if !errors.As(err, &oom) || oom.Requested != memory.Bytes(i*4000) || oom.Stats != before || x.Valid() {
			t.Errorf("call %d: %v and %+v, want stats %+v", i, x, err, before)
		}
		if d.calls != calls {
			t.Errorf("call %d reached the device", i)
		}
	}
	if f.Count() != n {
		t.Errorf("counted %d of %d calls", f.Count(), n)
	}
	return failed
}

// countsLive checks that f counts only live tensors that were allocated through
// it. before is a tensor that was allocated before f was made; freeing it
// through f must change no count.
func countsLive(t *testing.T, f *Faulty, before device.Tensor) {
	t.Helper()
	x, err := f.Alloc(10, device.I32)
	if err != nil {
		t.Fatal(err)
	}
	var oom *memory.OutOfMemoryError
	if _, err := f.Alloc(9<<20, device.F32); !errors.As(err, &oom) || f.Injected() != 5 {
		t.Errorf("a true failure: %v, %d injected", err, f.Injected())
	}
	f.Free(before)
	if f.Live() != 1 || f.LiveBytes() != 40 {
		t.Errorf("%d live with %v", f.Live(), f.LiveBytes())
	}
	f.Free(x)
	if f.Live() != 0 || f.LiveBytes() != 0 || f.Stats().Allocated != 0 {
		t.Errorf("%d live with %v", f.Live(), f.LiveBytes())
	}
}
