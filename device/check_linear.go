package device

import "fmt"

// Check checks [Linear.MatMul].
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

// CheckAddBias checks [Linear.AddBias].
func CheckAddBias(x, b Tensor, rows, cols int) {
	const op = "AddBias"
	matrix(op, rows, cols)
	WantFloat(op, "x", x, rows*cols)
	Want(op, "b", b, cols, F32)
}

// CheckBiasGrad checks [Linear.BiasGrad].
func CheckBiasGrad(db, dy Tensor, rows, cols int) {
	const op = "BiasGrad"
	matrix(op, rows, cols)
	Want(op, "db", db, cols, F32)
	WantFloat(op, "dy", dy, rows*cols)
}

// matrix refuses a matrix with a dimension below 1.
func matrix(op string, rows, cols int) {
	positive(op, "rows", rows)
	positive(op, "cols", cols)
}
