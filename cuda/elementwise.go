//go:build cuda

package cuda

import "headroom/device"

// quads is how many groups of four elements a kernel may move at a time: none
// where a tensor does not start at a multiple of 16 bytes.
func quads(n int, tensors ...device.Tensor) int {
	for _, t := range tensors {
		if t.Addr%16 != 0 {
			return 0
		}
	}
	return n / 4
}

func (g *gpu) Fill(x device.Tensor, v float32) {
	device.CheckFill(x)
	g.launch("fill", walk(x.Len), x, v, x.Len, g.scratch.fault)
}

func (g *gpu) Add(y, x device.Tensor) {
	device.CheckAdd(y, x)
	q := quads(y.Len, y, x)
	g.launch("add", walk(y.Len-3*q), y, x, q, y.Len, g.scratch.fault)
}

func (g *gpu) GELU(y, x device.Tensor) {
	device.CheckGELU(y, x)
	q := quads(y.Len, y, x)
	g.launch("gelu", walk(y.Len-3*q), y, x, q, y.Len)
}

func (g *gpu) GELUGrad(dx, x, dy device.Tensor) {
	device.CheckGELUGrad(dx, x, dy)
	q := quads(dx.Len, dx, x, dy)
	g.launch("gelu_grad", walk(dx.Len-3*q), dx, x, dy, q, dx.Len)
}

func (g *gpu) Dropout(y, x, samples device.Tensor, d device.Dropout) {
	d.Check(y, x, samples)
	g.launch("dropout", walk((d.Each+3)/4*samples.Len), y, x, samples, samples.Len, d.Each, d.Seed, d.Step, d.Site, d.Threshold(), d.Scale())
}
