//go:build cuda

package cuda

import "headroom/device"

func (g *gpu) MatMul(c, a, b device.Tensor, p device.MatMul) {
	p.Check(c, a, b)
	strideA, strideB := p.K, p.N
	if p.TransA {
		strideA = p.M
	}
	if p.TransB {
		strideB = p.K
	}
	g.product(matrix{at: c.Addr, stride: p.N}, matrix{at: a.Addr, stride: strideA}, matrix{at: b.Addr, stride: strideB}, p, 1, 0)
}

func (g *gpu) AddBias(x, b device.Tensor, rows, cols int) {
	device.CheckAddBias(x, b, rows, cols)
	g.launch("add_bias", walk(rows*cols), x, b, rows, cols)
}
