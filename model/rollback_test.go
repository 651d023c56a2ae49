package model

import (
	"context"
	"errors"
	"math"
	"testing"

	"headroom/device"
	"headroom/harness"
	"headroom/memory"
	"headroom/model/data"
)

// TestFailedStepsThatAreNotAboutMemory checks that a step that fails for a
// reason other than memory also leaves no trace.
func TestFailedStepsThatAreNotAboutMemory(t *testing.T) {
	var notFinite *harness.NotFiniteError
	failures := map[string]struct {
		tamper func(x *data.Sample) error
		want   func(error) bool
	}{
		"set":        {func(*data.Sample) error { return context.DeadlineExceeded }, func(err error) bool { return errors.Is(err, context.DeadlineExceeded) }},
		"target":     {func(x *data.Sample) error { x.Targets[0] = 1000; return nil }, isPlain},
		"negative":   {func(x *data.Sample) error { x.Targets[0] = -1; return nil }, isPlain},
		"no targets": {func(x *data.Sample) error { fill(x.Targets, device.IgnoreIndex); return nil }, isPlain},
		"input": {func(x *data.Sample) error {
			fill(x.Tokens, 1000)
			fill(x.Features, float32(math.NaN()))
			return nil
		}, func(err error) bool { return errors.As(err, &notFinite) || isPlain(err) }},
	}
	for _, s := range subjects() {
		for name, f := range failures {
			t.Run(s.name+" "+name, func(t *testing.T) {
				tr, _ := s.open(t)
				steps(t, tr, 1, plan(10, 4))
				before, set, held := capture(t, tr), tr.set, tr.Stats().Allocated
				tr.set = broken{set, f.tamper}
				if _, err := tr.Step(t.Context(), plan(10, 4)); err == nil || !f.want(err) {
					t.Errorf("error %v", err)
				}
				same(t, "after the failed step", capture(t, tr), before)
				if tr.Stats().Allocated != held {
					t.Errorf("%v held, %v before", tr.Stats().Allocated, held)
				}
				tr.set = set
				steps(t, tr, 1, plan(10, 4))
			})
		}
	}
}

func fill[T any](x []T, v T) {
	for i := range x {
		x[i] = v
	}
}

func isPlain(err error) bool {
	var oom *memory.OutOfMemoryError
	return err != nil && !errors.As(err, &oom)
}

// TestNotFinite makes a weight infinite, so that the loss is not finite. The failed
// step must leave all weights as they were, the infinite one included.
func TestNotFinite(t *testing.T) {
	for _, s := range subjects() {
		t.Run(s.name, func(t *testing.T) {
			tr, _ := s.open(t)
			tr.dev.Upload(tr.st.weights.View(3, 1), []float32{float32(math.Inf(1))})
			before := capture(t, tr)
			_, err := tr.Step(t.Context(), plan(50, 8))
			var notFinite *harness.NotFiniteError
			if !errors.As(err, &notFinite) || notFinite.Step != 1 || notFinite.What != "loss" {
				t.Errorf("error %v, want a loss that is not finite", err)
			}
			same(t, "after a loss that is not finite", capture(t, tr), before)
		})
	}
}

// cancelling is a device that cancels a context at one of its allocations: the next one if
// left is 1, the one after it if left is 2, and so on.
type cancelling struct {
	device.Device
	left   int
	cancel context.CancelFunc
}

func (d *cancelling) Alloc(n int, t device.DType) (device.Tensor, error) {
	if d.left--; d.left == 0 {
		d.cancel()
	}
	return d.Device.Alloc(n, t)
}

func TestCancelBetweenMicroBatches(t *testing.T) {
	for _, s := range subjects() {
		t.Run(s.name, func(t *testing.T) {
			tr, d := s.open(t)
			d.FailAt()
			steps(t, tr, 1, plan(8, 4))
			n, before, held := d.Count(), capture(t, tr), tr.Stats().Allocated
			for i := 1; i <= n; i++ {
				ctx, cancel := context.WithCancel(t.Context())
				tr.dev = &cancelling{d, i, cancel}
				_, err := tr.Step(ctx, plan(8, 4))
				tr.dev = d
				if !errors.Is(err, context.Canceled) {
					t.Fatalf("cancelled at allocation %d of %d: error %v", i, n, err)
				}
				same(t, "after a cancelled step", capture(t, tr), before)
				if tr.Stats().Allocated != held {
					t.Fatalf("%v held, %v before", tr.Stats().Allocated, held)
				}
			}
			steps(t, tr, 1, plan(8, 4))
		})
	}
}

// TestOtherPanicsPass checks that a panic that does not come from a failed allocation is
// passed on, after the memory has been freed.
func TestOtherPanicsPass(t *testing.T) {
	tr, _ := tiny(GPT).open(t)
	held := tr.Stats().Allocated
	s := tr.scope()
	defer func() {
		if cause := recover(); cause != "a mistake" {
			t.Errorf("panic %v went on, want the one that was raised", cause)
		}
		if tr.Stats().Allocated != held {
			t.Errorf("%v held, %v before", tr.Stats().Allocated, held)
		}
	}()
	_ = s.within(func() error {
		s.floats(1000)
		panic("a mistake")
	})
}
