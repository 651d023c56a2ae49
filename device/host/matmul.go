package host

import (
	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/blas/gonum"

	"headroom/device"
)

const (
	// depth is the number of values of k that a product handles at a time. Two packed
	// panels of this depth stay in the cache, and dot products of this length are long
	// enough for gonum to be fast.
	depth = 256
	// panelStride keeps the rows of a panel 16-byte aligned and in different
	// cache sets.
	panelStride = depth + 4
	// A tile of tileRows × tileCols elements of c is one piece of work.
	tileRows, tileCols = 32, 64
)

// MatMul computes c = op(a)·op(b) + beta·c.
//
// gonum's Sgemm splits its work among goroutines by size alone, so its bits do not depend
// on GOMAXPROCS. But it is slow if an operand is transposed (2 instead of 12 GFLOP/s on two
// cores if both are), uses a single goroutine for outputs of fewer than four blocks of
// 64×64, and sums in another order when there are more rows. So MatMul brings every product
// into the form that gonum computes fastest, rows of a times rows of bᵀ, and cuts it into
// tiles that are too small for gonum to split. An element of c is then a sum of dot
// products, one per slice of at most depth values of k, whatever m and n are.
func (d *Device) MatMul(c, a, b device.Tensor, p device.MatMul) {
	const op = "MatMul"
	p.Check(c, a, b)
	out, left, right := d.floats(op, "c", c), d.floats(op, "a", a), d.floats(op, "b", b)
	if d.failed() {
		return
	}
	beta := p.Beta
	for from := 0; from < p.K; from += depth {
		to := min(p.K, from+depth)
		l := d.panel(&d.left, operand{left, p.M, p.K, p.TransA}, from, to)
		r := d.panel(&d.right, operand{right, p.N, p.K, !p.TransB}, from, to)
		d.tiled(out, p.M, p.N, to-from, l, r, beta)
		beta = 1
	}
	d.store(c, out)
}

// tiled computes c = left·rightᵀ + beta·c, tile by tile. c is m×n. The rows of left and
// right hold k values each, a slice of the product's inner dimension.
func (d *Device) tiled(c []float32, m, n, k int, left, right panel, beta float32) {
	across := (n + tileCols - 1) / tileCols
	down := (m + tileRows - 1) / tileRows
	d.parallel(across*down, 1, func(_, from, to int) {
		for t := from; t < to; t++ {
			i, j := t/across*tileRows, t%across*tileCols
			rows, cols := min(tileRows, m-i), min(tileCols, n-j)
			gonum.Implementation{}.Sgemm(blas.NoTrans, blas.Trans, rows, cols, k, 1,
				left.x[i*left.stride:], left.stride, right.x[j*right.stride:], right.stride,
				beta, c[i*n+j:], n)
		}
	})
}

// operand is a matrix of rows×k values, stored as rows×k or, if transposed is
// set, as k×rows.
type operand struct {
	x          []float32
	rows, k    int
	transposed bool
}

// panel holds rows of at most depth values each.
type panel struct {
	x      []float32
	stride int
}

// panel returns values [from, to) of every row of o. It uses them in place if
// their layout already fits, and packs them into scratch otherwise. Rows must
// be 16-byte aligned, because gonum's dot product begins at a 16-byte boundary:
// without alignment the order of its sum, and so the bits of the result, would
// depend on the address.
func (d *Device) panel(scratch *[]float32, o operand, from, to int) panel {
	if !o.transposed && o.k%4 == 0 && aligned(o.x) {
		return panel{o.x[from:], o.k}
	}
	x := grow(scratch, o.rows*panelStride)
	d.parallel(o.rows, grain(to-from), func(_, first, last int) {
		if o.transposed {
			transpose(x[first*panelStride:], panelStride, o.x[from*o.rows+first:], o.rows, to-from, last-first)
			return
		}
		for r := first; r < last; r++ {
			copy(x[r*panelStride:], o.x[r*o.k+from:r*o.k+to])
		}
	})
	return panel{x, panelStride}
}

// transpose writes the transpose of the rows×cols matrix src to dst. It works
// in blocks, so that the cache lines that it writes stay in the cache.
func transpose(dst []float32, dstStride int, src []float32, srcStride, rows, cols int) {
	const block = 32
	for r := 0; r < rows; r += block {
		for c := 0; c < cols; c += block {
			wide := min(block, cols-c)
			for i := r; i < min(rows, r+block); i++ {
				for j, v := range src[i*srcStride+c:][:wide] {
					dst[(c+j)*dstStride+i] = v
				}
			}
		}
	}
}

// grow returns the first n elements of scratch. If scratch is too small, grow
// first replaces it with a larger slice, which is kept for the next call.
func grow[E any](scratch *[]E, n int) []E {
	if cap(*scratch) < n {
		*scratch = make([]E, n)
	}
	return (*scratch)[:n]
}
