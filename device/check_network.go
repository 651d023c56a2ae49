package device

// CheckLayerNorm checks [Network.LayerNorm].
func CheckLayerNorm(out, mean, rstd, x, gamma, beta Tensor, rows, cols int) {
	const op = "LayerNorm"
	matrix(op, rows, cols)
	Want(op, "out", out, rows*cols, F32)
	Want(op, "mean", mean, rows, F32)
	Want(op, "rstd", rstd, rows, F32)
	Want(op, "x", x, rows*cols, F32)
	Want(op, "gamma", gamma, cols, F32)
	Want(op, "beta", beta, cols, F32)
}

// CheckLayerNormGrad checks [Network.LayerNormGrad].
func CheckLayerNormGrad(dx, dgamma, dbeta, dy, x, gamma, mean, rstd Tensor, rows, cols int) {
	const op = "LayerNormGrad"
	matrix(op, rows, cols)
	Want(op, "dx", dx, rows*cols, F32)
	Want(op, "dgamma", dgamma, cols, F32)
	Want(op, "dbeta", dbeta, cols, F32)
	Want(op, "dy", dy, rows*cols, F32)
	Want(op, "x", x, rows*cols, F32)
	Want(op, "gamma", gamma, cols, F32)
	Want(op, "mean", mean, rows, F32)
	Want(op, "rstd", rstd, rows, F32)
}

// Check checks [Network.Attention].
func (s Attention) Check(out, lse, qkv Tensor) {
	const op = "Attention"
	s.check(op)
	Want(op, "out", out, s.B*s.T*s.H*s.D, F32)
	Want(op, "lse", lse, s.B*s.H*s.T, F32)
	Want(op, "qkv", qkv, s.B*s.T*3*s.H*s.D, F32)
}

// CheckGrad checks [Network.AttentionGrad].
func (s Attention) CheckGrad(dqkv, delta, dout, qkv, out, lse Tensor) {
	const op = "AttentionGrad"
	s.check(op)
	Want(op, "dqkv", dqkv, s.B*s.T*3*s.H*s.D, F32)
	Want(op, "delta", delta, s.B*s.H*s.T, F32)
	Want(op, "dout", dout, s.B*s.T*s.H*s.D, F32)
	Want(op, "qkv", qkv, s.B*s.T*3*s.H*s.D, F32)
	Want(op, "out", out, s.B*s.T*s.H*s.D, F32)
	Want(op, "lse", lse, s.B*s.H*s.T, F32)
}

func (s Attention) check(op string) {
	positive(op, "B", s.B)
	positive(op, "T", s.T)
	positive(op, "H", s.H)
	positive(op, "D", s.D)
}

// CheckCrossEntropy checks [Network.CrossEntropy].
func CheckCrossEntropy(loss, logits, target Tensor, rows, classes int) {
	const op = "CrossEntropy"
	positive(op, "rows", rows)
	positive(op, "classes", classes)
	Want(op, "loss", loss, rows, F32)
	Want(op, "logits", logits, rows*classes, F32)
	Want(op, "target", target, rows, I32)
}

// CheckSum checks [Network.Sum].
func CheckSum(dst, x Tensor) {
	Want("Sum", "dst", dst, 1, F32)
	Want("Sum", "x", x, x.Len, F32)
}
