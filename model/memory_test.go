package model

import (
	"errors"
	"math"
	"testing"

	"headroom/memory"
)

func TestRecomputeChangesNothingButThePeak(t *testing.T) {
	for _, s := range subjects() {
		t.Run(s.name, func(t *testing.T) {
			s.spec.Layers = 4
			plain, _ := s.open(t)
			tr, _ := s.open(t)
			tr.SetRecompute(true)
			a, b := steps(t, plain, 3, plan(12, 5)), steps(t, tr, 3, plan(12, 5))
			same(t, "with recomputation", capture(t, tr), capture(t, plain))
			if a.Loss != b.Loss || b.Memory.Peak >= a.Memory.Peak {
				t.Errorf("loss %v, peak %v with recomputation; %v, %v without", b.Loss, b.Memory.Peak, a.Loss, a.Memory.Peak)
			}
			t.Logf("peak %v, with recomputation %v", a.Memory.Peak, b.Memory.Peak)

			tr.SetRecompute(false)
			same(t, "switched off again", after(t, tr, 1), after(t, plain, 1))
		})
	}
}

func after(t *testing.T, tr *Trainer, n int) snapshot {
	t.Helper()
	steps(t, tr, n, plan(12, 5))
	return capture(t, tr)
}

// TestPeakIsAffineInMicroBatch draws a line through the peaks of the smallest
// and the largest micro-batch, and checks that the peaks in between lie near
// it.
func TestPeakIsAffineInMicroBatch(t *testing.T) {
	for _, s := range subjects() {
		for _, recompute := range []bool{false, true} {
			s.spec.Width = 64
			tr, _ := s.open(t)
			tr.SetRecompute(recompute)
			peak := func(micro int) float64 {
				stats, err := tr.Probe(t.Context(), micro)
				if err != nil {
					t.Fatal(err)
				}
				return float64(stats.Peak)
			}
			first, last := peak(1), peak(16)
			if last <= first {
				t.Fatalf("%s: peaks %v and %v of micro-batches 1 and 16", s.name, first, last)
			}
			for micro := 1; micro <= 16; micro++ {
				line := first + (last-first)*float64(micro-1)/15
				if got := peak(micro); math.Abs(got-line) > 0.02*line {
					t.Errorf("%s: micro-batch %d peaks at %.0f bytes, the line says %.0f", s.name, micro, got, line)
				}
			}
		}
	}
}

func TestRequirementsAreWhatIsHeld(t *testing.T) {
	for _, s := range subjects() {
		for _, kind := range []OptimizerKind{AdamW, SGD} {
			s.spec.Optimizer.Kind = kind
			tr, _ := s.open(t)
			r := tr.Spec().Requirements()
			const scalars memory.Bytes = 512 // the size that the allocator rounds to
			if got := tr.Stats().Allocated; got != r.Total()+scalars {
				t.Errorf("%s %s: %v held, requirements say %v", s.name, kind, got, r.Total())
			}
			if r.Parameters == 0 || memory.Bytes(4*r.Parameters) > r.Weights {
				t.Errorf("%s: %d parameters in %v", s.name, r.Parameters, r.Weights)
			}
		}
	}
}

func TestRequirementsOfGPT2(t *testing.T) {
	s := Spec{Kind: GPT, Width: 768, Layers: 12, Heads: 12, Context: 1024, Vocab: 50257}
	if got := s.Requirements().Parameters; got != 124_439_808 {
		t.Errorf("%d parameters, GPT-2 has 124439808", got)
	}
}

func TestNewFailsWhole(t *testing.T) {
	for _, s := range subjects() {
		d := openFaulty(t)
		fitted, err := s.spec.Fit(s.set.Shape())
		if err != nil {
			t.Fatal(err)
		}
		need, allocations := fitted.Requirements().Total(), 5
		if s.spec.Mixed {
			allocations++
		}
		for nth := 1; ; nth++ {
			d.FailAt(nth)
			tr, err := New(d, s.spec, s.set)
			if err == nil {
				if nth != allocations+1 {
					t.Errorf("%s: built with %d allocations, want weights, gradients, two moments, numbers and, if mixed, factors", s.name, nth-1)
				}
				if err := tr.Close(); err != nil {
					t.Error(err)
				}
				break
			}
			var oom *memory.OutOfMemoryError
			if !errors.As(err, &oom) || oom.Phase != memory.PhaseLoad || oom.Micro != 0 {
				t.Errorf("%s: allocation %d: %v", s.name, nth, err)
			} else if oom.Needed() < need || oom.Needed() > need+4*alignment {
				t.Errorf("%s: allocation %d: needs %v, want all of the model's %v", s.name, nth, oom.Needed(), need)
			}
			if d.Live() != 0 {
				t.Errorf("%s: allocation %d: %d tensors left", s.name, nth, d.Live())
			}
		}
	}
}

// TestSmallDevice checks that a step can be repeated after a real out-of-memory
// failure, on a device that has room for the model but not for the micro-batch.
func TestSmallDevice(t *testing.T) {
	s := tiny(GPT)
	s.spec.Width = 64
	reference, _ := s.open(t)
	steps(t, reference, 1, plan(64, 1))
	d, err := openDevice(4 * memory.MiB)
	if err != nil {
		t.Fatal(err)
	}
	tr, err := New(d, s.spec, s.set)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := tr.Close(); err != nil {
			t.Error(err)
		}
	})
	_, err = tr.Step(t.Context(), plan(64, 64))
	var oom *memory.OutOfMemoryError
	if !errors.As(err, &oom) || oom.Micro != 64 || oom.Stats.Capacity != 4*memory.MiB {
		t.Fatalf("error %v, want out of memory at micro-batch 64", err)
	}
	if _, err := tr.EmptyCache(); err != nil {
		t.Fatal(err)
	}
	steps(t, tr, 1, plan(64, 1))
	same(t, "after a real failure", capture(t, tr), capture(t, reference))
}
