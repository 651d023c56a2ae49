package host

import (
	"math"

	"headroom/device"
)

// LayerNorm normalises each row. Mean and variance are computed in two passes,
// so that the variance is accurate even if the mean is large.
func (d *Device) LayerNorm(out, mean, rstd, x, gamma, beta device.Tensor, rows, cols int, eps float32) {
	const op = "LayerNorm"
	device.CheckLayerNorm(out, mean, rstd, x, gamma, beta, rows, cols)
	to, from := d.floats(op, "out", out), d.floats(op, "x", x)
	means, rstds := d.floats(op, "mean", mean), d.floats(op, "rstd", rstd)
	scale, shift := d.floats(op, "gamma", gamma), d.floats(op, "beta", beta)
	if d.failed() {
		return
	}
	d.parallel(rows, grain(cols), func(_, first, last int) {
		for r := first; r < last; r++ {
			row := from[r*cols:][:cols]
			m, inverse := moments(row, eps)
			means[r], rstds[r] = m, inverse
			result, scale, shift := to[r*cols:][:len(row)], scale[:len(row)], shift[:len(row)]
			for c, v := range row {
				result[c] = (v-m)*inverse*scale[c] + shift[c]
			}
		}
	})
	d.store(out, to)
}

// moments returns the mean of a row and 1/√(biased variance + eps).
func moments(row []float32, eps float32) (mean, rstd float32) {
	n := float32(len(row))
	mean = sum(row) / n
	return mean, float32(1 / math.Sqrt(float64(sumOff(row, mean)/n+eps)))
}

// sum returns the sum of x. It adds in four lanes, which need not wait for one
// another and have smaller rounding errors than one long sum.
func sum(x []float32) float32 {
	var a, b, c, d float32
	for ; len(x) >= 4; x = x[4:] {
		a, b, c, d = a+x[0], b+x[1], c+x[2], d+x[3]
	}
	for _, v := range x {
		a += v
	}
	return (a + b) + (c + d)
}

// sumOff returns the sum of (x−mean)², added up in four lanes as in sum.
func sumOff(x []float32, mean float32) float32 {
	var a, b, c, d float32
	for ; len(x) >= 4; x = x[4:] {
		p, q, r, s := x[0]-mean, x[1]-mean, x[2]-mean, x[3]-mean
		a, b, c, d = a+p*p, b+q*q, c+r*r, d+s*s
	}
	for _, v := range x {
		a += (v - mean) * (v - mean)
	}
	return (a + b) + (c + d)
}

// LayerNormGrad computes the following, where x̂ = (x−mean)·rstd and g = dy·gamma:
//
//	dx = rstd·(g − avg(g) − x̂·avg(g·x̂)),  dgamma += Σ_r dy·x̂,  dbeta += Σ_r dy
func (d *Device) LayerNormGrad(dx, dgamma, dbeta, dy, x, gamma, mean, rstd device.Tensor, rows, cols int) {
	const op = "LayerNormGrad"
	device.CheckLayerNormGrad(dx, dgamma, dbeta, dy, x, gamma, mean, rstd, rows, cols)
	to, from, grad := d.floats(op, "dx", dx), d.floats(op, "x", x), d.floats(op, "dy", dy)
	toGamma, toBeta := d.floats(op, "dgamma", dgamma), d.floats(op, "dbeta", dbeta)
	scale := d.floats(op, "gamma", gamma)
	means, rstds := d.floats(op, "mean", mean), d.floats(op, "rstd", rstd)
	if d.failed() {
		return
	}
	d.overRows(rows, cols, 2*cols, func(sum []float64, r int) {
		at, end := r*cols, (r+1)*cols
		layerNormRow(to[at:end], grad[at:end], from[at:end], scale, sum, means[r], rstds[r])
	}, func(i int, sum float64) {
		if i < cols {
			toGamma[i] += float32(sum)
		} else {
			toBeta[i-cols] += float32(sum)
		}
	})
	d.store(dx, to)
}

// layerNormRow computes dx for one row, and adds the row's share to sum, which holds the
// sums for dgamma, followed by those for dbeta. dx and dy may be the same slice.
func layerNormRow(dx, dy, x, gamma []float32, sum []float64, mean, rstd float32) {
	cols := len(dx)
	dy, x, gamma = dy[:cols], x[:cols], gamma[:cols]
	dgamma, dbeta := sum[:cols], sum[cols:][:cols]
	var sumG, sumGX float32
	for c, v := range dy {
		normal := (x[c] - mean) * rstd
		g := v * gamma[c]
		sumG += g
		sumGX += g * normal
		dgamma[c] += float64(v * normal)
		dbeta[c] += float64(v)
	}
	avgG, avgGX := sumG/float32(cols), sumGX/float32(cols)
	for c, v := range dy {
		normal := (x[c] - mean) * rstd
		dx[c] = rstd * (v*gamma[c] - avgG - normal*avgGX)
	}
}
