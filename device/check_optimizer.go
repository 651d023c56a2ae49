package device

// CheckSumSquares panics with a *[ShapeError] unless the operands fit
// [Optimizer.SumSquares].
func CheckSumSquares(dst, x Tensor) {
	Want("SumSquares", "dst", dst, 1, F32)
	Want("SumSquares", "x", x, x.Len, F32)
}

// Check panics with a *[ShapeError] unless the parameters and operands fit
// [Optimizer.AdamW].
func (p AdamW) Check(w, g, m, v Tensor) {
	const op = "AdamW"
	positive(op, "Step", p.Step)
	Want(op, "w", w, w.Len, F32)
	Want(op, "g", g, w.Len, F32)
	Want(op, "m", m, w.Len, F32)
	Want(op, "v", v, w.Len, F32)
}

// Check panics with a *[ShapeError] unless the operands fit [Optimizer.SGD].
func (SGD) Check(w, g, m Tensor) {
	const op = "SGD"
	Want(op, "w", w, w.Len, F32)
	Want(op, "g", g, w.Len, F32)
	Want(op, "m", m, w.Len, F32)
}
