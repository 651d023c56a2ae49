package device

import "fmt"

// CheckFill checks [Elementwise.Fill].
func CheckFill(x Tensor) { Want("Fill", "x", x, x.Len, F32) }

// CheckAdd checks [Elementwise.Add].
func CheckAdd(y, x Tensor) {
	Want("Add", "y", y, y.Len, F32)
	Want("Add", "x", x, y.Len, F32)
}

// CheckGELU checks [Elementwise.GELU].
func CheckGELU(y, x Tensor) {
	Want("GELU", "y", y, y.Len, F32)
	Want("GELU", "x", x, y.Len, F32)
}

// CheckGELUGrad checks [Elementwise.GELUGrad].
func CheckGELUGrad(dx, x, dy Tensor) {
	const op = "GELUGrad"
	Want(op, "dx", dx, dx.Len, F32)
	Want(op, "x", x, dx.Len, F32)
	Want(op, "dy", dy, dx.Len, F32)
}

// Check checks [Elementwise.Dropout].
func (d Dropout) Check(y, x, samples Tensor) {
	const op = "Dropout"
	positive(op, "Each", d.Each)
	if !(d.P >= 0 && d.P < 1) { // so, and NaN does not pass
		panic(&ShapeError{Op: op, Text: fmt.Sprintf("P is %v: in [0, 1)", d.P)})
	}
	Want(op, "samples", samples, samples.Len, I32)
	Want(op, "y", y, samples.Len*d.Each, F32)
	Want(op, "x", x, samples.Len*d.Each, F32)
}
