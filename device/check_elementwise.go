package device

import "fmt"

// CheckFill checks [Elementwise.Fill].
func CheckFill(x Tensor) { Want("Fill", "x", x, x.Len, F32) }

// CheckAdd checks [Elementwise.Add].
func CheckAdd(y, x Tensor) {
	WantFloat("Add", "y", y, y.Len)
	WantFloat("Add", "x", x, y.Len)
}

// CheckGELU checks [Elementwise.GELU].
func CheckGELU(y, x Tensor) {
	WantFloat("GELU", "y", y, y.Len)
	Want("GELU", "x", x, y.Len, y.DType)
}

// CheckGELUGrad checks [Elementwise.GELUGrad].
func CheckGELUGrad(dx, x, dy Tensor) {
	const op = "GELUGrad"
	WantFloat(op, "dx", dx, dx.Len)
	Want(op, "x", x, dx.Len, dx.DType)
	Want(op, "dy", dy, dx.Len, dx.DType)
}

// Check checks [Elementwise.Dropout].
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
