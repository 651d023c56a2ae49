package host

import (
	"math"

	"headroom/device"
)

// AdamW performs one step, with the schedule multiplier of the paper folded
// into LR, as PyTorch does: w −= LR·(m̂/(√v̂+Eps) + WeightDecay·w).
func (d *Device) AdamW(w, g, m, v device.Tensor, p device.AdamW) {
	const op = "AdamW"
	p.Check(w, g, m, v)
	weights, grads := d.floats(op, "w", w), d.floats(op, "g", g)
	first, second := d.floats(op, "m", m), d.floats(op, "v", v)
	if d.failed() {
		return
	}
	step := float64(p.Step)
	rate := float32(float64(p.LR) / (1 - math.Pow(float64(p.Beta1), step)))
	norm := float32(1 / math.Sqrt(1-math.Pow(float64(p.Beta2), step)))
	d.parallel(len(weights), elements/4, func(_, from, to int) {
		for i := from; i < to; i++ {
			grad := p.GradScale * grads[i]
			first[i] = p.Beta1*first[i] + (1-p.Beta1)*grad
			second[i] = p.Beta2*second[i] + (1-p.Beta2)*grad*grad
			root := float32(math.Sqrt(float64(second[i]))) * norm
			weights[i] -= rate*first[i]/(root+p.Eps) + p.LR*p.WeightDecay*weights[i]
		}
	})
}

// SGD performs one step in PyTorch's form.
func (d *Device) SGD(w, g, m device.Tensor, p device.SGD) {
	const op = "SGD"
	p.Check(w, g, m)
	weights, grads, momentum := d.floats(op, "w", w), d.floats(op, "g", g), d.floats(op, "m", m)
	if d.failed() {
		return
	}
	d.parallel(len(weights), elements, func(_, from, to int) {
		for i := from; i < to; i++ {
			grad := p.GradScale*grads[i] + p.WeightDecay*weights[i]
			momentum[i] = p.Momentum*momentum[i] + grad
			weights[i] -= p.LR * momentum[i]
		}
	})
}
