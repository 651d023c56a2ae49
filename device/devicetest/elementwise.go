package devicetest

import (
	"fmt"
	"math"
	"slices"

	"headroom/device"
)

// lengths are those of elementwise operations.
var lengths = []int{1, 3, 17, 65, 1024, 33001}

func testFill(r *rig) {
	for _, n := range lengths {
		v := r.random(1)[0]
		r.verify(fmt.Sprint(n), func(r *rig) []result {
			x := r.output(n)
			r.d.Fill(x, float32(v))
			return []result{r.forward("x", x, slices.Repeat([]float64{v}, n))}
		})
	}
}

func testAdd(r *rig) {
	for _, n := range lengths {
		x, y := r.random(n), r.random(n)
		sum := make([]float64, n)
		for i := range sum {
			sum[i] = x[i] + y[i]
		}
		r.verify(fmt.Sprint(n), func(r *rig) []result {
			out := r.inout(y)
			r.d.Add(out, r.input(x))
			return []result{r.forward("y", out, sum)}
		})
	}
}

// testGELU also covers values far out on both sides, where the tanh is ±1 and
// a careless exponential overflows.
func testGELU(r *rig) {
	for _, n := range lengths {
		x, dy := r.random(n), r.random(n)
		steady(n, x, dy)
		for i := 1; i < n; i += 5 {
			x[i] = float64(float32(x[i] * 40))
		}
		y, dx := make([]float64, n), make([]float64, n)
		for i, v := range x {
			y[i], dx[i] = refGELU(v), dy[i]*refGELUGrad(v)
		}
		r.verify(fmt.Sprint(n), func(r *rig) []result {
			at, grad := r.input(x), r.input(dy)
			out, same := r.output(n), r.inout(x)
			r.d.GELU(out, at)
			r.d.GELU(same, same)
			back, sameBack := r.output(n), r.inout(dy)
			r.d.GELUGrad(back, at, grad)
			r.d.GELUGrad(sameBack, at, sameBack)
			return []result{
				r.forward("y", out, y), r.forward("y in place of x", same, y),
				r.gradient("dx", back, dx), r.gradient("dx in place of dy", sameBack, dx),
			}
		})
	}
}

func testSum(r *rig) {
	for _, n := range lengths {
		x, before := r.random(n), r.random(1)
		for i := range x {
			x[i] = math.Abs(x[i]) // no cancellation, which would make the bound one on the numbers, not on the device
		}
		sum, squares := 0.0, math.Abs(before[0])
		for _, v := range x {
			sum += v
			squares += v * v
		}
		r.verify(fmt.Sprint(n), func(r *rig) []result {
			from, total, norm := r.input(x), r.output(1), r.inout([]float64{math.Abs(before[0])})
			r.d.Sum(total, from)
			r.d.SumSquares(norm, from)
			return []result{r.forward("sum", total, []float64{sum}), r.forward("sum of squares", norm, []float64{squares})}
		})
	}
}

func testCopy(r *rig) {
	for _, n := range lengths {
		x := r.random(n)
		r.verify(fmt.Sprint(n), func(r *rig) []result {
			out, up := r.output(n), r.output(n)
			r.d.Copy(out, r.input(x))
			src := narrow(x)
			r.d.Upload(up, src)
			clear(src) // the upload has its copy
			return []result{r.forward("copy", out, x), r.forward("upload", up, x)}
		})
	}
	r.verify("ints", func(r *rig) []result {
		tok := []int32{4, 0, 3, 1, 2}
		src := slices.Clone(tok)
		from, to := r.ints(make([]int32, 5)), r.ints(make([]int32, 5))
		r.d.UploadInts(from, src)
		clear(src)
		r.d.Copy(to, from)
		out := r.output(5)
		table, place := []float64{10, 11, 12, 13, 14}, make([]float64, 5)
		s := device.Embed{B: 1, T: 5, C: 1, V: 5}
		r.d.Embed(out, to, r.input(table), r.input(place), s)
		return []result{r.forward("out", out, refEmbed(tok, table, place, s))}
	})
}
