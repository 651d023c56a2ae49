package devicetest

import (
	"fmt"

	"headroom/device"
)

// products lists the shapes (M, N, K) of the matrix products that are tested: odd ones,
// ones around the tile sizes that devices use, and those of a small model.
var products = [][3]int{
	{1, 1, 1}, {1, 17, 3}, {3, 1, 65}, {17, 65, 3}, {65, 17, 33}, {31, 33, 255}, {5, 7, 257}, {64, 64, 64}, {130, 67, 29},
	{128, 96, 32}, {33, 10, 700}, {100, 192, 64},
}

func testMatMul(r *rig) {
	for _, shape := range products {
		for variant := range 8 {
			p := device.MatMul{M: shape[0], N: shape[1], K: shape[2], TransA: variant&1 != 0, TransB: variant&2 != 0, Beta: float32(variant >> 2)}
			for _, types := range r.pairs() {
				if types.in == r.act {
					r.matMul(p, types)
				}
			}
		}
	}
}

func (r *rig) matMul(p device.MatMul, types pair) {
	a, b, c := r.random(types.in, p.M*p.K), r.random(types.in, p.K*p.N), r.random(types.out, p.M*p.N)
	steady(p.M*p.N, a, b, c)
	want := refMatMul(c, a, b, p)
	r.verify(fmt.Sprintf("%v,%dx%dx%d,%v,%v,beta=%v", types, p.M, p.N, p.K, p.TransA, p.TransB, p.Beta), func(r *rig) []result {
		out := r.output(types.out, p.M*p.N) // NaN: with beta 0 it must not be read
		if p.Beta == 1 {
			out = r.inout(types.out, c)
		}
		r.d.MatMul(out, r.input(types.in, a), r.input(types.in, b), p)
		return []result{r.forward("c", out, want)}
	})
}

// rows are the shapes, as rows, columns, of matrices that are processed row by
// row.
var rows = [][2]int{{1, 1}, {1, 17}, {3, 1}, {17, 65}, {65, 3}, {1025, 33}, {129, 256}, {6, 1000}}

func testBias(r *rig) {
	for _, shape := range rows {
		n, cols := shape[0], shape[1]
		x, b := r.random(r.act, n*cols), r.random(device.F32, cols)
		steady(cols, x, b)
		added, sums := make([]float64, n*cols), append([]float64(nil), b...)
		for i, v := range x {
			added[i] = v + b[i%cols]
			sums[i%cols] += v
		}
		r.verify(fmt.Sprintf("AddBias,%dx%d", n, cols), func(r *rig) []result {
			out := r.inout(r.act, x)
			r.d.AddBias(out, r.input(device.F32, b), n, cols)
			return []result{r.forward("x", out, added)}
		})
		r.verify(fmt.Sprintf("BiasGrad,%dx%d", n, cols), func(r *rig) []result {
			db := r.inout(device.F32, b)
			r.d.BiasGrad(db, r.input(r.act, x), n, cols)
			return []result{r.gradient("db", db, sums)}
		})
	}
}
