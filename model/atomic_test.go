package model

import (
	"errors"
	"math"
	"testing"

	"headroom/memory"
	"headroom/recovery"
)

// sweepSteps is the number of steps in each run of a sweep. A sweep makes every allocation
// of these steps fail in turn, as SQLite's tests do with every malloc. A step that fails is
// tried again until it succeeds.
const sweepSteps = 3

// sweep holds what the runs of one sweep share: the model, the plan for the first try
// of a step, and the plan for further tries.
type sweep struct {
	subject
	plan, retry recovery.Plan
}

// run runs the steps of the sweep while the given allocations fail, and returns the state
// at the end. Allocations are counted from 1 at the start of the first step.
func (s sweep) run(t *testing.T, fail ...int) snapshot {
	t.Helper()
	tr, d := s.open(t)
	defer func() {
		if err := tr.Close(); err != nil {
			t.Error(err)
		}
	}()
	held, injected := tr.Stats().Allocated, d.Injected()
	d.FailAt(fail...)
	for range sweepSteps {
		before, p := capture(t, tr), s.plan
		for {
			_, err := tr.Step(t.Context(), p)
			if err == nil {
				break
			}
			checkFailure(t, err, fail)
			if tr.Stats().Allocated != held || d.LiveBytes() > held {
				t.Fatalf("allocation %v failed: %v held afterwards, %v before", fail, tr.Stats().Allocated, held)
			}
			same(t, "after a failed step", capture(t, tr), before)
			p = s.retry
		}
	}
	if got := d.Injected() - injected; got != len(fail) {
		t.Fatalf("%d of the allocations %v failed", got, fail)
	}
	return capture(t, tr)
}

func checkFailure(t *testing.T, err error, fail []int) {
	t.Helper()
	var oom *memory.OutOfMemoryError
	if !errors.As(err, &oom) {
		t.Fatalf("allocation %v failed: %v, want an out of memory error", fail, err)
	}
	if oom.Micro == 0 || (oom.Phase != memory.PhaseForward && oom.Phase != memory.PhaseBackward) {
		t.Fatalf("allocation %v failed: %v, want phase and micro-batch", fail, err)
	}
}

// swept returns the subjects of the sweeps. Their steps run as many operations as those of
// the other subjects, but on less data.
func swept() []subject {
	gpt, mlp := tiny(GPT), tiny(MLP)
	gpt.spec.Width, gpt.set = 8, text{n: 30, tokens: 6, classes: 11}
	return []subject{gpt, mlp, gpt.mixed(), mlp.mixed()}
}

// allocations returns the number of allocations that a step with the sweep's plan
// makes.
func (s sweep) allocations(t *testing.T) int {
	t.Helper()
	tr, d := s.open(t)
	d.FailAt()
	steps(t, tr, 1, s.plan)
	return d.Count()
}

func TestEveryAllocationMayFail(t *testing.T) {
	for _, sub := range swept() {
		for _, kind := range []OptimizerKind{AdamW, SGD} {
			t.Run(sub.name+" "+string(kind), func(t *testing.T) {
				sub.spec.Optimizer.Kind = kind
				s := sweep{sub, plan(7, 4), plan(7, 4)}
				want, n := s.run(t), sweepSteps*s.allocations(t)
				for i := 1; i <= n; i += stride(13) {
					same(t, "after the retry", s.run(t, i), want)
				}
				t.Logf("swept %d allocations", n)
			})
		}
	}
}

func TestEveryAllocationMayFailWithSmallerRetry(t *testing.T) {
	for _, sub := range swept() {
		t.Run(sub.name, func(t *testing.T) {
			// The gradient of attention's key bias is zero except for rounding.
			// Adam would blow the rounding up to full updates.
			sub.spec.Optimizer.Eps = 1e-4
			s := sweep{sub, plan(7, 4), plan(7, 3)}
			want, n, worst := s.run(t), sweepSteps*s.allocations(t), 0.0
			for i := 1; i <= n; i += stride(13) {
				worst = math.Max(worst, distance(s.run(t, i).weights, want.weights))
			}
			t.Logf("swept %d allocations, weights at most %.1e apart", n, worst)
			if !(worst <= sub.near()) {
				t.Errorf("weights are %.1e apart, want %.0e at most", worst, sub.near())
			}
		})
	}
}

func TestEveryPairOfAllocationsMayFail(t *testing.T) {
	for _, sub := range swept() {
		t.Run(sub.name, func(t *testing.T) {
			sub.spec.Layers = 1
			s := sweep{sub, plan(4, 2), plan(4, 2)}
			want, n, pairs := s.run(t), s.allocations(t), 0
			for i := 1; i <= n; i++ {
				for j := i + 1; j <= i+n; j += stride(17) {
					same(t, "after two retries", s.run(t, i, j), want)
					pairs++
				}
			}
			t.Logf("swept %d pairs of %d allocations", pairs, n)
		})
	}
}

// stride returns the distance between the allocations that a sweep makes fail: the value of
// short in short mode, else 1. short should have no factor in common with the number of
// allocations of a layer.
func stride(short int) int {
	if testing.Short() {
		return short
	}
	return 1
}

func TestProbeMayFailAndLeavesNoTrace(t *testing.T) {
	for _, s := range subjects() {
		t.Run(s.name, func(t *testing.T) {
			plain, _ := s.open(t)
			steps(t, plain, 2, plan(10, 4))
			tr, d := s.open(t)
			steps(t, tr, 1, plan(10, 4))
			held := tr.Stats().Allocated
			d.FailAt()
			stats, err := tr.Probe(t.Context(), 4)
			if err != nil {
				t.Fatal(err)
			}
			if stats.Peak <= held || stats.Allocated != held {
				t.Errorf("peak %v and %v held after a probe, %v before it", stats.Peak, stats.Allocated, held)
			}
			n := d.Count()
			for i := 1; i <= n; i++ {
				d.FailAt(i)
				_, err := tr.Probe(t.Context(), 4)
				checkFailure(t, err, []int{i})
				if tr.Stats().Allocated != held {
					t.Fatalf("allocation %d: %v held, %v before", i, tr.Stats().Allocated, held)
				}
			}
			d.FailAt()
			steps(t, tr, 1, plan(10, 4))
			same(t, "with probes between steps", capture(t, tr), capture(t, plain))
		})
	}
}

// TestProbeNeedsWhatAStepNeeds checks that a probe reaches the same memory peak as a
// step.
func TestProbeNeedsWhatAStepNeeds(t *testing.T) {
	for _, s := range subjects() {
		t.Run(s.name, func(t *testing.T) {
			tr, _ := s.open(t)
			stats, err := tr.Probe(t.Context(), 6)
			if err != nil {
				t.Fatal(err)
			}
			if r := steps(t, tr, 1, plan(12, 6)); r.Memory.Peak != stats.Peak {
				t.Errorf("a probe of 6 peaked at %v, a step of 6 × 2 at %v", stats.Peak, r.Memory.Peak)
			}
			if _, err := tr.Probe(t.Context(), 0); err == nil {
				t.Error("a probe of no samples succeeded")
			}
		})
	}
}

// TestProbeIsNotChargedForWhatOthersLeft probes a small micro-batch before and after a
// large one. The memory that the large one leaves in the cache must not count as memory
// that the small one needs.
func TestProbeIsNotChargedForWhatOthersLeft(t *testing.T) {
	for _, s := range subjects() {
		t.Run(s.name, func(t *testing.T) {
			tr, _ := s.open(t)
			reserved := map[string]memory.Bytes{}
			for _, p := range []struct {
				when  string
				micro int
			}{{"before", 2}, {"large", 4000}, {"after", 2}} {
				stats, err := tr.Probe(t.Context(), p.micro)
				if err != nil {
					t.Fatal(err)
				}
				reserved[p.when] = stats.PeakReserved
			}
			if reserved["large"] <= reserved["before"] {
				t.Fatalf("the large probe reserved %v, the small one %v: the test shows nothing", reserved["large"], reserved["before"])
			}
			if reserved["after"] != reserved["before"] {
				t.Errorf("a small probe reserved %v, and %v after a large one", reserved["before"], reserved["after"])
			}
		})
	}
}
