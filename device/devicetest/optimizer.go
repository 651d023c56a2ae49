package devicetest

import (
	"fmt"
	"math"
	"slices"

	"headroom/device"
)

// refAdamW is algorithm 2 of Loshchilov and Hutter, 2019, with the schedule
// multiplier folded into the learning rate as PyTorch does.
func refAdamW(w, g, m, v []float64, p device.AdamW) {
	b1, b2 := float64(p.Beta1), float64(p.Beta2)
	for i := range w {
		grad := float64(p.GradScale) * g[i]
		m[i] = b1*m[i] + (1-b1)*grad
		v[i] = b2*v[i] + (1-b2)*grad*grad
		hatM, hatV := m[i]/(1-math.Pow(b1, float64(p.Step))), v[i]/(1-math.Pow(b2, float64(p.Step)))
		w[i] -= float64(p.LR) * (hatM/(math.Sqrt(hatV)+float64(p.Eps)) + float64(p.WeightDecay)*w[i])
	}
}

func refSGD(w, g, m []float64, p device.SGD) {
	for i := range w {
		d := float64(p.GradScale)*g[i] + float64(p.WeightDecay)*w[i]
		m[i] = float64(p.Momentum)*m[i] + d
		w[i] -= float64(p.LR) * m[i]
	}
}

// testAdamW performs three steps from moments of 0, so that the bias correction
// has an effect.
func testAdamW(r *rig) {
	for _, n := range lengths {
		w, g := r.random(device.F32, n), r.random(device.F32, n)
		apart(w, g)
		p := device.AdamW{LR: 0.5, Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, WeightDecay: 0.1, GradScale: 0.25}
		wantW, wantM, wantV := slices.Clone(w), make([]float64, n), make([]float64, n)
		for p.Step = 1; p.Step <= 3; p.Step++ {
			refAdamW(wantW, g, wantM, wantV, p)
		}
		r.verify(fmt.Sprint(n), func(r *rig) []result {
			p := p
			weights, grads := r.inout(device.F32, w), r.input(device.F32, g)
			m, v := r.inout(device.F32, make([]float64, n)), r.inout(device.F32, make([]float64, n))
			for p.Step = 1; p.Step <= 3; p.Step++ {
				r.d.AdamW(weights, grads, m, v, p)
			}
			return []result{r.forward("w", weights, wantW), r.forward("m", m, wantM), r.forward("v", v, wantV)}
		})
	}
}

func testSGD(r *rig) {
	for _, n := range lengths {
		w, g, m := r.random(device.F32, n), r.random(device.F32, n), r.random(device.F32, n)
		apart(w, g, m)
		p := device.SGD{LR: 0.5, Momentum: 0.9, WeightDecay: 0.01, GradScale: 0.5}
		wantW, wantM := slices.Clone(w), slices.Clone(m)
		refSGD(wantW, g, wantM, p)
		r.verify(fmt.Sprint(n), func(r *rig) []result {
			weights, momentum := r.inout(device.F32, w), r.inout(device.F32, m)
			r.d.SGD(weights, r.input(device.F32, g), momentum, p)
			return []result{r.forward("w", weights, wantW), r.forward("m", momentum, wantM)}
		})
	}
}

// apart does nothing unless w has fewer than 16 elements. It then makes w positive, and
// makes the tensors in against negative, so that an update makes every weight grow and no
// weight comes near 0. Like steady, it keeps cancellation out of the comparison.
func apart(w []float64, against ...[]float64) {
	if len(w) >= 16 {
		return
	}
	for i := range w {
		w[i] = math.Abs(w[i])
		for _, x := range against {
			x[i] = -math.Abs(x[i])
		}
	}
}
