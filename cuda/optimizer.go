//go:build cuda

package cuda

import (
	"math"

	"headroom/device"
)

func (g *gpu) AdamW(w, grad, m, v device.Tensor, p device.AdamW) {
	p.Check(w, grad, m, v)
	stepSize := float64(p.LR) / (1 - math.Pow(float64(p.Beta1), float64(p.Step)))
	root := 1 / math.Sqrt(1-math.Pow(float64(p.Beta2), float64(p.Step)))
	g.launch("adamw", walk(w.Len), w, grad, m, v, w.Len, p.LR, p.Beta1, p.Beta2, p.Eps, p.WeightDecay, p.GradScale, float32(stepSize), float32(root), g.scratch.fault)
}

func (g *gpu) SGD(w, grad, m device.Tensor, p device.SGD) {
	p.Check(w, grad, m)
	g.launch("sgd", walk(w.Len), w, grad, m, w.Len, p.LR, p.Momentum, p.WeightDecay, p.GradScale, g.scratch.fault)
}
