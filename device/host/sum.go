package host

import "headroom/device"

// Sum computes dst[0] = Σ x.
func (d *Device) Sum(dst, x device.Tensor) {
	device.CheckSum(dst, x)
	to, from := d.floats("Sum", "dst", dst), d.floats("Sum", "x", x)
	if d.failed() {
		return
	}
	to[0] = float32(d.total(from, func(v float64) float64 { return v }))
}

// SumSquares computes dst[0] += Σ x².
func (d *Device) SumSquares(dst, x device.Tensor) {
	device.CheckSumSquares(dst, x)
	to, from := d.floats("SumSquares", "dst", dst), d.floats("SumSquares", "x", x)
	if d.failed() {
		return
	}
	to[0] += float32(d.total(from, func(v float64) float64 { return v * v }))
}

// total returns Σ f(x[i]). It lets overRows compute the sum, treating every element of x
// as a row.
func (d *Device) total(x []float32, f func(float64) float64) (sum float64) {
	d.overRows(len(x), 1, 1, func(sum []float64, i int) { sum[0] += f(float64(x[i])) },
		func(_ int, total float64) { sum = total })
	return sum
}
