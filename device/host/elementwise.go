package host

import "headroom/device"

// elements is the number of elements in one piece of work, for operations that
// touch each element once.
const elements = 16384

// Fill sets every element of x to v.
func (d *Device) Fill(x device.Tensor, v float32) {
	device.CheckFill(x)
	to := d.floats("Fill", "x", x)
	if d.failed() {
		return
	}
	d.parallel(len(to), elements, func(_, first, last int) { fill(to[first:last], v) })
}

// Add computes y += x.
func (d *Device) Add(y, x device.Tensor) {
	device.CheckAdd(y, x)
	to, from := d.floats("Add", "y", y), d.floats("Add", "x", x)
	if d.failed() {
		return
	}
	d.parallel(len(to), elements, func(_, first, last int) { add(to[first:last], from[first:last]) })
	d.store(y, to)
}

// add computes y += x; x is at least as long as y.
func add(y, x []float32) {
	x = x[:len(y)]
	for i := range y {
		y[i] += x[i]
	}
}

// The constants of GELU's tanh form.
const (
	geluInner = 0.7978845608028654 // √(2/π)
	geluCubic = 0.044715
)

// GELU computes y = 0.5·x·(1+tanh(u)), where u = √(2/π)·(x+0.044715·x³). It
// uses the equal form x·σ(2u), which needs only one exponential.
func (d *Device) GELU(y, x device.Tensor) {
	device.CheckGELU(y, x)
	to, from := d.floats("GELU", "y", y), d.floats("GELU", "x", x)
	if d.failed() {
		return
	}
	d.parallel(len(to), elements/8, func(_, first, last int) {
		for i := first; i < last; i++ {
			v := from[i]
			to[i] = v / (1 + exp(-2*geluInner*v*(1+geluCubic*v*v)))
		}
	})
	d.store(y, to)
}

// GELUGrad computes dx = dy·(s + x·s·(1−s)·2u′), where s = σ(2u) and u is as in GELU.
func (d *Device) GELUGrad(dx, x, dy device.Tensor) {
	const op = "GELUGrad"
	device.CheckGELUGrad(dx, x, dy)
	to, at, grad := d.floats(op, "dx", dx), d.floats(op, "x", x), d.floats(op, "dy", dy)
	if d.failed() {
		return
	}
	d.parallel(len(to), elements/8, func(_, first, last int) {
		for i := first; i < last; i++ {
			v := at[i]
			s := 1 / (1 + exp(-2*geluInner*v*(1+geluCubic*v*v)))
			slope := 2 * geluInner * (1 + 3*geluCubic*v*v)
			to[i] = grad[i] * s * (1 + v*(1-s)*slope)
		}
	})
	d.store(dx, to)
}

// Dropout compares each element's word from [device.Dropout.Draw] with Threshold. If the
// word is at least Threshold, the element is multiplied by Scale; otherwise it is set to
// 0.
func (d *Device) Dropout(y, x, samples device.Tensor, p device.Dropout) {
	const op = "Dropout"
	p.Check(y, x, samples)
	numbers := d.ints(op, "samples", samples)
	to, from := d.floats(op, "y", y), d.floats(op, "x", x)
	if d.failed() {
		return
	}
	blocks := (p.Each + 3) / 4
	threshold, scale := p.Threshold(), p.Scale()
	d.parallel(len(numbers)*blocks, elements/16, func(_, first, last int) {
		for i := first; i < last; i++ {
			sample, block := i/blocks, i%blocks
			begin := sample*p.Each + 4*block
			end := min(begin+4, (sample+1)*p.Each)
			words := p.Draw(numbers[sample], uint32(block))
			for j, v := range from[begin:end] {
				if words[j] < threshold {
					v = 0
				} else {
					v *= scale
				}
				to[begin+j] = v
			}
		}
	})
	d.store(y, to)
}
