package host

import "headroom/device"

// Operations compute in float32. For an F32 operand, floats returns the device's memory
// itself. A BF16 operand is widened into scratch, without loss, when the operation
// calls floats. If it is an output, the operation calls store at the end, which rounds
// the values back to BF16.

// floats returns the values of t, which the operation's check found to be F32 or BF16.
// The scratch of a BF16 operand is found by the operand's name, since the operands of
// one operation have different names.
func (d *Device) floats(op, name string, t device.Tensor) []float32 {
	if t.DType != device.BF16 {
		return view[float32](d, op, name, t)
	}
	from := view[uint16](d, op, name, t)
	to := d.wide[name]
	if cap(to) < len(from) {
		to = make([]float32, len(from))
		d.wide[name] = to
	}
	to = to[:len(from)]
	d.parallel(len(to), elements, func(_, first, last int) {
		for i, v := range from[first:last] {
			to[first+i] = device.FromBF16(v)
		}
	})
	return to
}

// store writes values, which floats returned for t, back to t.
func (d *Device) store(t device.Tensor, values []float32) {
	if t.DType != device.BF16 {
		return
	}
	to := view[uint16](d, "store", "t", t)
	d.parallel(len(to), elements, func(_, first, last int) {
		for i, v := range values[first:last] {
			to[first+i] = device.ToBF16(v)
		}
	})
}
