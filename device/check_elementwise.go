package device

import "fmt"

// CheckFill panics with a *[ShapeError] unless the operands fit
// [Elementwise.Fill].
func CheckFill(x Tensor) { Want("Fill", "x", x, x.Len, F32) }

// CheckAdd panics with a *[ShapeError] unless the operands fit
// [Elementwise.Add].
func CheckAdd(y, x Tensor) {
	WantFloat("Add", "y", y, y.Len)
	WantFloat("Add", "x", x, y.Len)
}

// CheckGELU panics with a *[ShapeError] unless the operands fit
// [Elementwise.GELU].
func CheckGELU(y, x Tensor) {
	WantFloat("GELU", "y", y, y.Len)
	Want("GELU", "x", x, y.Len, y.DType)
}

// CheckGELUGrad panics with a *[ShapeError] unless the operands fit
// [Elementwise.GELUGrad].
func CheckGELUGrad(dx, x, dy Tensor) {
	const op = "GELUGrad"
	WantFloat(op, "dx", dx, dx.Len)
	Want(op, "x", x, dx.Len, dx.DType)
	Want(op, "dy", dy, dx.Len, dx.DType)
}

// Check panics with a *[ShapeError] unless the parameters and operands fit
// [Elementwise.Dropout].
func (d Dropout) Check(y, x, samples Tensor) {
	const op = "Dropout"
	positive(op, "Each", d.Each)
	if !(d.P >= 0 && d.P < 1) { // written so that NaN fails too
		panic(&ShapeError{Op: op, Text: fmt.Sprintf("P is %v: must be in [0, 1)", d.P)})
	}
	Want(op, "samples", samples, samples.Len, I32)
	WantFloat(op, "y", y, samples.Len*d.Each)
	WantFloat(op, "x", x, samples.Len*d.Each)
}
