package host

import "headroom/device"

// AddBias computes x[r,·] += b.
func (d *Device) AddBias(x, b device.Tensor, rows, cols int) {
	const op = "AddBias"
	device.CheckAddBias(x, b, rows, cols)
	to, from := d.floats(op, "x", x), d.floats(op, "b", b)
	if d.failed() {
		return
	}
	d.parallel(rows, grain(cols), func(_, first, last int) {
		for r := first; r < last; r++ {
			add(to[r*cols:][:cols], from)
		}
	})
	d.store(x, to)
}

// BiasGrad computes db += Σ_r dy[r,·].
func (d *Device) BiasGrad(db, dy device.Tensor, rows, cols int) {
	const op = "BiasGrad"
	device.CheckBiasGrad(db, dy, rows, cols)
	to, from := d.floats(op, "db", db), d.floats(op, "dy", dy)
	if d.failed() {
		return
	}
	d.overRows(rows, cols, cols, func(sum []float64, r int) {
		for c, v := range from[r*cols:][:cols] {
			sum[c] += float64(v)
		}
	}, func(c int, sum float64) { to[c] += float32(sum) })
}

// overRows computes n sums over rows of cols elements. For every row r it calls one(sum,
// r), which adds the row to the n elements of sum; then it calls done(i, sum) with each
// of the n results. The shape alone determines how the rows are cut into pieces, and the
// sums of the pieces are combined in order, in float64, so the bits do not depend on the
// number of workers.
func (d *Device) overRows(rows, cols, n int, one func(sum []float64, r int), done func(i int, sum float64)) {
	each := max(grain(cols), (rows+maxPieces-1)/maxPieces)
	pieces := (rows + each - 1) / each
	partial := grow(&d.partial, pieces*n)
	clear(partial)
	d.parallel(rows, each, func(_, first, last int) {
		sum := partial[first/each*n:][:n]
		for r := first; r < last; r++ {
			one(sum, r)
		}
	})
	for i := range n {
		sum := 0.0
		for p := range pieces {
			sum += partial[p*n+i]
		}
		done(i, sum)
	}
}

// maxPieces is the largest number of pieces into which overRows cuts the rows. It bounds
// the scratch.
const maxPieces = 64
