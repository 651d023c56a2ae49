//go:build cuda

package cuda

import "headroom/device"

func (g *gpu) MatMul(c, a, b device.Tensor, p device.MatMul) {
	p.Check(c, a, b)
	g.product(c, a, b, p)
}

func (g *gpu) AddBias(x, b device.Tensor, rows, cols int) {
	device.CheckAddBias(x, b, rows, cols)
	across, w := groups(cols, x, b)
	const threads = 64 // little is lost where a row does not fill them
	s := shape{gridX: (across + threads - 1) / threads, blockX: threads, blockY: 1}
	s.gridY = max(1, min(rows, 4*gridLimit/s.gridX))
	g.launch("add_bias"+types(x), s, x, b, rows, across, w)
}
