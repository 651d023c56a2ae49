package device

import "fmt"

// CheckLayerNorm panics with a *[ShapeError] unless the operands fit
// [Network.LayerNorm].
func CheckLayerNorm(out, mean, rstd, x, gamma, beta Tensor, rows, cols int) {
	const op = "LayerNorm"
	matrix(op, rows, cols)
	WantFloat(op, "out", out, rows*cols)
	Want(op, "mean", mean, rows, F32)
	Want(op, "rstd", rstd, rows, F32)
	WantFloat(op, "x", x, rows*cols)
	Want(op, "gamma", gamma, cols, F32)
	Want(op, "beta", beta, cols, F32)
}

// CheckLayerNormGrad panics with a *[ShapeError] unless the operands fit
// [Network.LayerNormGrad].
func CheckLayerNormGrad(dx, dgamma, dbeta, dy, x, gamma, mean, rstd Tensor, rows, cols int) {
	const op = "LayerNormGrad"
	matrix(op, rows, cols)
	WantFloat(op, "dx", dx, rows*cols)
	Want(op, "dgamma", dgamma, cols, F32)
	Want(op, "dbeta", dbeta, cols, F32)
	Want(op, "dy", dy, rows*cols, dx.DType)
	WantFloat(op, "x", x, rows*cols)
	Want(op, "gamma", gamma, cols, F32)
	Want(op, "mean", mean, rows, F32)
	Want(op, "rstd", rstd, rows, F32)
}

// Check panics with a *[ShapeError] unless the parameters and operands fit
// [Network.Attention].
func (s Attention) Check(out, lse, qkv Tensor) {
	const op = "Attention"
	s.check(op)
	WantFloat(op, "out", out, s.B*s.T*s.H*s.D)
	Want(op, "lse", lse, s.B*s.H*s.T, F32)
	Want(op, "qkv", qkv, s.B*s.T*3*s.H*s.D, out.DType)
}

// CheckGrad panics with a *[ShapeError] unless the parameters and operands fit
// [Network.AttentionGrad].
func (s Attention) CheckGrad(dqkv, delta, dout, qkv, out, lse Tensor) {
	const op = "AttentionGrad"
	s.check(op)
	WantFloat(op, "dqkv", dqkv, s.B*s.T*3*s.H*s.D)
	Want(op, "delta", delta, s.B*s.H*s.T, F32)
	Want(op, "dout", dout, s.B*s.T*s.H*s.D, dqkv.DType)
	Want(op, "qkv", qkv, s.B*s.T*3*s.H*s.D, dqkv.DType)
	Want(op, "out", out, s.B*s.T*s.H*s.D, dqkv.DType)
	Want(op, "lse", lse, s.B*s.H*s.T, F32)
}

func (s Attention) check(op string) {
	positive(op, "B", s.B)
	positive(op, "T", s.T)
	positive(op, "H", s.H)
	positive(op, "D", s.D)
}

// CheckCrossEntropy panics with a *[ShapeError] unless the operands fit
// [Network.CrossEntropy].
func CheckCrossEntropy(loss, logits, target Tensor, rows, classes int) {
	const op = "CrossEntropy"
	positive(op, "rows", rows)
	positive(op, "classes", classes)
	Want(op, "loss", loss, rows, F32)
	WantFloat(op, "logits", logits, logits.Len)
	if logits.Len%rows != 0 || logits.Len/rows < classes {
		panic(&ShapeError{Op: op, Text: fmt.Sprintf("logits holds %d elements: must be a multiple of rows = %d, and at least rows·classes = %d", logits.Len, rows, rows*classes)})
	}
	Want(op, "target", target, rows, I32)
}

// CheckSum panics with a *[ShapeError] unless the operands fit [Network.Sum].
func CheckSum(dst, x Tensor) {
	Want("Sum", "dst", dst, 1, F32)
	Want("Sum", "x", x, x.Len, F32)
}
