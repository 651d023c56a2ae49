package model

import (
	"errors"
	"slices"
	"testing"

	"headroom/device"
	"headroom/harness"
	"headroom/model/data"
	"headroom/recovery"
)

func TestReportTellsTheStep(t *testing.T) {
	s := tiny(GPT)
	tr, d := s.open(t)
	steps(t, tr, 2, plan(10, 4))
	r := steps(t, tr, 1, plan(10, 4))
	tokens := 0
	for pos := int64(20); pos < 30; pos++ {
		_, i := data.Order{Seed: s.spec.Seed, Len: s.set.Len()}.At(pos)
		x := s.set.Shape().New()
		if err := s.set.Sample(i, x); err != nil {
			t.Fatal(err)
		}
		tokens += len(slices.DeleteFunc(x.Targets, func(y int32) bool { return y == device.IgnoreIndex }))
	}
	if r.Step != 3 || r.First != 20 || r.Samples != 10 || r.Tokens != tokens {
		t.Errorf("step %d from %d on, %d samples, %d tokens; want 3, 20, 10, %d", r.Step, r.First, r.Samples, r.Tokens, tokens)
	}
	if !slices.Equal(r.Splits, []int{4, 3, 3}) {
		t.Errorf("splits %v, want 4 3 3", r.Splits)
	}
	if want := s.spec.Schedule.at(3, s.spec.Optimizer.LR); r.LR != want {
		t.Errorf("learning rate %v, want %v", r.LR, want)
	}
	if r.Memory.Allocated != d.Stats().Allocated || r.Memory.Peak <= r.Memory.Allocated {
		t.Errorf("memory %+v", r.Memory)
	}
	if r.Loss <= 0 || r.GradNorm <= 0 {
		t.Errorf("loss %v, gradient norm %v", r.Loss, r.GradNorm)
	}
	if small := steps(t, tr, 1, plan(10, 1)); small.Memory.Peak >= r.Memory.Peak {
		t.Errorf("peak %v at micro-batch 1, %v at 4: not the step's own", small.Memory.Peak, r.Memory.Peak)
	}
}

func TestPlansThatAreRefused(t *testing.T) {
	tr, _ := tiny(MLP).open(t)
	for _, p := range []recovery.Plan{{Effective: 4, World: 2, Micro: 2}, plan(0, 1), plan(4, 0)} {
		if _, err := tr.Step(t.Context(), p); err == nil {
			t.Errorf("plan %+v was run", p)
		}
	}
}

// TestClip checks that the report gives the gradient norm before clipping, and
// that the update uses the clipped gradients.
func TestClip(t *testing.T) {
	s := tiny(MLP)
	s.spec.Optimizer = Optimizer{Kind: SGD, LR: 1}
	s.spec.Schedule = Schedule{}
	free, _ := s.open(t)
	before := capture(t, free).weights
	norm := steps(t, free, 1, plan(10, 4)).GradNorm
	s.spec.Optimizer.Clip = norm / 4
	clipped, _ := s.open(t)
	if got := steps(t, clipped, 1, plan(10, 4)).GradNorm; got != norm {
		t.Errorf("norm %v with clipping, %v without", got, norm)
	}
	a, b := capture(t, free).weights, capture(t, clipped).weights
	for i := range a {
		a[i], b[i] = a[i]-before[i], 4*(b[i]-before[i])
	}
	if off := distance(b, a); off > 1e-4 {
		t.Errorf("the clipped update is %v away from a quarter of the other", off)
	}
}

func TestDecayReachesMatricesAlone(t *testing.T) {
	for _, s := range subjects() {
		for _, kind := range []OptimizerKind{AdamW, SGD} {
			s.spec.Optimizer = Optimizer{Kind: kind, LR: 0.01}
			s.spec.Schedule = Schedule{}
			plain, _ := s.open(t)
			steps(t, plain, 1, plan(4, 4))
			s.spec.Optimizer.WeightDecay = 0.5
			decayed, _ := s.open(t)
			steps(t, decayed, 1, plan(4, 4))
			a, b := capture(t, plain).weights, capture(t, decayed).weights
			for _, p := range plain.st.layout.list {
				moved := firstDifference(a[p.at:p.at+p.n], b[p.at:p.at+p.n]) >= 0
				if moved != (len(p.shape) == 2) {
					t.Errorf("%s %s %v: moved by decay: %v", kind, p.name, p.shape, moved)
				}
			}
		}
	}
}

// TestGradientNormNotFinite checks that a step is refused if the gradients
// overflow. The loss stays finite, because the huge inputs are multiplied by
// weights of zero.
func TestGradientNormNotFinite(t *testing.T) {
	s := tiny(MLP)
	tr, _ := s.open(t)
	first := tr.st.layout.list[0]
	tr.dev.Fill(tr.st.weights.View(first.at, first.n), 0)
	tr.set = broken{s.set, func(x *data.Sample) error { fill(x.Features, 1e25); return nil }}
	before := capture(t, tr)
	_, err := tr.Step(t.Context(), plan(10, 4))
	var notFinite *harness.NotFiniteError
	if !errors.As(err, &notFinite) || notFinite.What != "gradient norm" {
		t.Errorf("error %v, want a gradient norm that is not finite", err)
	}
	same(t, "after a norm that is not finite", capture(t, tr), before)
}

// TestLossFalls trains both kinds of models, each on data that it can learn,
// and checks that the loss at least halves.
func TestLossFalls(t *testing.T) {
	for _, s := range subjects() {
		s.spec.Dropout, s.spec.Schedule = 0, Schedule{}
		tr, _ := s.open(t)
		first := steps(t, tr, 1, plan(50, 25)).Loss
		last := steps(t, tr, 60, plan(50, 25)).Loss
		t.Logf("%s: loss %.3f → %.3f", s.name, first, last)
		if last > first/2 {
			t.Errorf("%s: loss %.3f after 61 steps, %.3f at first", s.name, last, first)
		}
	}
}

// failing is a device on which the next AdamW update fails if armed is set: the
// following Sync reports the error, once.
type failing struct {
	device.Device
	armed bool
	err   error
}

func (d *failing) AdamW(w, g, m, v device.Tensor, p device.AdamW) {
	if d.armed {
		d.armed, d.err = false, errors.New("device lost")
	}
	d.Device.AdamW(w, g, m, v, p)
}

func (d *failing) Sync() error {
	err := d.err
	d.err = nil
	return errors.Join(err, d.Device.Sync())
}

func TestFailedUpdateRefusesFurtherStepsUntilLoad(t *testing.T) {
	tr, d := tiny(MLP).open(t)
	saved := save(t, tr)
	tr.dev = &failing{Device: d, armed: true}
	for range 2 {
		if _, err := tr.Step(t.Context(), plan(4, 4)); err == nil {
			t.Fatal("a step succeeded on damaged weights")
		}
	}
	if err := tr.Save(&discard{}); err == nil {
		t.Error("damaged weights were saved")
	}
	load(t, tr, saved)
	steps(t, tr, 1, plan(4, 4))
}

type discard struct{}

func (*discard) Write(p []byte) (int, error) { return len(p), nil }
