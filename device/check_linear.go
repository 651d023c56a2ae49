package device

import "fmt"

// Check panics with a *[ShapeError] unless the parameters and operands fit
// [Linear.MatMul].
func (p MatMul) Check(c, a, b Tensor) {
	const op = "MatMul"
	positive(op, "M", p.M)
	positive(op, "N", p.N)
	positive(op, "K", p.K)
	WantFloat(op, "a", a, p.M*p.K)
	Want(op, "b", b, p.K*p.N, a.DType)
	result := a.DType
	if c.DType == F32 {
		result = F32
	}
	Want(op, "c", c, p.M*p.N, result)
	if p.Beta != 0 && p.Beta != 1 {
		panic(&ShapeError{Op: op, Text: fmt.Sprintf("beta is %v: must be 0 or 1", p.Beta)})
	}
}

// CheckAddBias panics with a *[ShapeError] unless the operands fit
// [Linear.AddBias].
func CheckAddBias(x, b Tensor, rows, cols int) {
	const op = "AddBias"
	matrix(op, rows, cols)
	WantFloat(op, "x", x, rows*cols)
	Want(op, "b", b, cols, F32)
}

// CheckBiasGrad panics with a *[ShapeError] unless the operands fit
// [Linear.BiasGrad].
func CheckBiasGrad(db, dy Tensor, rows, cols int) {
	const op = "BiasGrad"
	matrix(op, rows, cols)
	Want(op, "db", db, cols, F32)
	WantFloat(op, "dy", dy, rows*cols)
}

// matrix panics with a *[ShapeError] if a dimension is below 1.
func matrix(op string, rows, cols int) {
	positive(op, "rows", rows)
	positive(op, "cols", cols)
}
