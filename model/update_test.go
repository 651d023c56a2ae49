package model

import (
	"math"
	"testing"
)

// TestUpdatesFollowTheFormula checks the weights after several updates by AdamW
// and by SGD. It repeats the updates in float64, from the gradients that the
// trainer computed.
func TestUpdatesFollowTheFormula(t *testing.T) {
	for _, kind := range []OptimizerKind{AdamW, SGD} {
		t.Run(string(kind), func(t *testing.T) {
			s := tiny(MLP)
			s.spec.Optimizer.Kind, s.spec.Optimizer.Clip = kind, 0.5
			if kind == SGD {
				s.spec.Optimizer.Momentum = 0.9
			}
			tr, _ := s.open(t)
			w := wide(download(t, tr, tr.st.weights))
			m, v := make([]float64, len(w)), make([]float64, len(w))
			for range 4 {
				r := steps(t, tr, 1, plan(10, 4))
				g := wide(download(t, tr, tr.st.grads))
				scale := tr.spec.Optimizer.clipScale(r.GradNorm)
				for i := range w {
					w[i] = expect(tr.spec.Optimizer, r.Step, r.LR, w[i], scale*g[i], i < tr.st.layout.matrices, &m[i], &v[i])
				}
			}
			got := download(t, tr, tr.st.weights)
			for i := range w {
				if math.Abs(float64(got[i])-w[i]) > 1e-5 {
					t.Fatalf("weight %d is %v after 4 steps, the formula says %v", i, got[i], w[i])
				}
			}
		})
	}
}

// expect returns the value of one weight after one update, and updates its
// moments m and v.
func expect(o Optimizer, step int, lr, w, g float64, decays bool, m, v *float64) float64 {
	decay := 0.0
	if decays {
		decay = o.WeightDecay
	}
	if o.Kind == SGD {
		*m = o.Momentum**m + g + decay*w
		return w - lr**m
	}
	*m = o.Beta1**m + (1-o.Beta1)*g
	*v = o.Beta2**v + (1-o.Beta2)*g*g
	mean, square := *m/(1-math.Pow(o.Beta1, float64(step))), *v/(1-math.Pow(o.Beta2, float64(step)))
	return w - lr*(mean/(math.Sqrt(square)+o.Eps)+decay*w)
}

func wide(x []float32) []float64 {
	out := make([]float64, len(x))
	for i, v := range x {
		out[i] = float64(v)
	}
	return out
}

// TestDropoutDiffersFromStepToStep compares the gradients of different steps on
// one batch, with the same weights. Two steps must differ, and a repeated step
// must not.
func TestDropoutDiffersFromStepToStep(t *testing.T) {
	for _, s := range subjects() {
		t.Run(s.name, func(t *testing.T) {
			tr, _ := s.open(t)
			b, err := tr.fetch(0, 8)
			if err != nil {
				t.Fatal(err)
			}
			at := func(step int) []float32 {
				tr.step = step
				if err := tr.gradients(t.Context(), b, []int{8}); err != nil {
					t.Fatal(err)
				}
				return download(t, tr, tr.st.grads)
			}
			first, next, again := at(0), at(1), at(0)
			if firstDifference(first, again) >= 0 {
				t.Error("one step drops differently the second time")
			}
			if distance(next, first) < 1e-3 {
				t.Error("two steps drop alike")
			}
		})
	}
}
