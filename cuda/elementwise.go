//go:build cuda

package cuda

import (
	"math"

	"headroom/device"
)

// quads returns how many groups of four elements a kernel may move as a whole.
// It returns 0 if a tensor does not start at a multiple of the size of a group.
func quads(n int, tensors ...device.Tensor) int {
	for _, t := range tensors {
		if t.Addr%device.Addr(4*t.DType.Size()) != 0 {
			return 0
		}
	}
	return n / 4
}

// groups divides each row of cols elements into groups of w elements; across is
// the number of groups. w is 4 if cols and the alignment of all tensors allow
// it, else 1.
func groups(cols int, tensors ...device.Tensor) (across, w int) {
	if cols%4 == 0 && quads(cols, tensors...) > 0 {
		return cols / 4, 4
	}
	return cols, 1
}

func (g *gpu) Fill(x device.Tensor, v float32) {
	device.CheckFill(x)
	g.launch("fill", walk(x.Len), x, v, x.Len, g.scratch.fault)
}

func (g *gpu) Add(y, x device.Tensor) {
	device.CheckAdd(y, x)
	q := quads(y.Len, y, x)
	g.launch("add"+types(y, x), walk(y.Len-3*q), y, x, q, y.Len, g.scratch.fault)
}

func (g *gpu) GELU(y, x device.Tensor) {
	device.CheckGELU(y, x)
	q := quads(y.Len, y, x)
	g.launch("gelu"+types(y), walk(y.Len-3*q), y, x, q, y.Len)
}

func (g *gpu) GELUGrad(dx, x, dy device.Tensor) {
	device.CheckGELUGrad(dx, x, dy)
	q := quads(dx.Len, dx, x, dy)
	g.launch("gelu_grad"+types(dx), walk(dx.Len-3*q), dx, x, dy, q, dx.Len)
}

func (g *gpu) Dropout(y, x, samples device.Tensor, d device.Dropout) {
	d.Check(y, x, samples)
	_, w := groups(d.Each, y, x)
	s := walk((d.Each + 3) / 4)
	s.gridY = min(samples.Len, max(1, 4*gridLimit/s.gridX))
	g.launch("dropout"+types(y, x), s, y, x, samples, samples.Len, d.Each, d.Seed, d.Step, d.Site, d.Threshold(), d.Scale(), w/4)
}

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
