//go:build cuda

package cuda

import "headroom/device"

func (g *gpu) Embed(out, tok, tokens, positions device.Tensor, s device.Embed) {
	s.Check(out, tok, tokens, positions)
	g.launch("embed", shape{gridX: s.B * s.T, gridY: 1, blockX: threads, blockY: 1},
		out, tok, tokens, positions, s.B*s.T, s.T, s.C, s.V, g.scratch.fault)
}

func (g *gpu) EmbedGrad(dtokens, dpositions, dout, tok device.Tensor, s device.Embed) {
	s.CheckGrad(dtokens, dpositions, dout, tok)
	g.launch("embed_grad_positions", walk(s.T*s.C), dpositions, dout, s.B, s.T, s.C)
	g.launch("embed_grad_tokens", shape{gridX: s.B * s.T, gridY: 1, blockX: 256, blockY: 1},
		dtokens, dout, tok, s.B*s.T, s.C, s.V, g.scratch.fault)
}

func (g *gpu) LayerNorm(out, mean, rstd, x, gamma, beta device.Tensor, rows, cols int, eps float32) {
	device.CheckLayerNorm(out, mean, rstd, x, gamma, beta, rows, cols)
	across, w := groups(cols, out, x, gamma, beta)
	g.launch("layernorm"+types(out, x), warps(rows), out, mean, rstd, x, gamma, beta, rows, across, w, eps)
}

func (g *gpu) LayerNormGrad(dx, dgamma, dbeta, dy, x, gamma, mean, rstd device.Tensor, rows, cols int) {
	device.CheckLayerNormGrad(dx, dgamma, dbeta, dy, x, gamma, mean, rstd, rows, cols)
	each, pieces := rowsAPiece(rows, cols)
	second := g.scratch.secondPieces()
	g.launch("layernorm_pieces"+types(dy, x), columns(cols, pieces), g.scratch.pieces, second, dy, x, mean, rstd, rows, cols, each)
	g.launch("add_pieces", columns(cols, 1), dgamma, g.scratch.pieces, pieces, cols)
	g.launch("add_pieces", columns(cols, 1), dbeta, second, pieces, cols)
	across, w := groups(cols, dx, dy, x, gamma)
	g.launch("layernorm_dx"+types(dx, x), warps(rows), dx, dy, x, gamma, mean, rstd, rows, across, w)
}

func (g *gpu) CrossEntropy(loss, logits, target device.Tensor, rows, classes int, scale float32) {
	device.CheckCrossEntropy(loss, logits, target, rows, classes)
	block := 1024
	for block > 32 && block/2 >= classes {
		block /= 2
	}
	g.launch("cross_entropy"+types(logits), shape{gridX: rows, gridY: 1, blockX: block, blockY: 1},
		loss, logits, target, classes, logits.Len/rows, scale, g.scratch.fault)
}

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
