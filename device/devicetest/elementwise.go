package devicetest

import (
	"fmt"
	"math"
	"slices"

	"headroom/device"
)

// lengths are the tensor lengths with which elementwise operations are tested.
var lengths = []int{1, 3, 17, 65, 1024, 33001}

func testFill(r *rig) {
	for _, n := range lengths {
		v := r.random(device.F32, 1)[0]
		r.verify(fmt.Sprint(n), func(r *rig) []result {
			x := r.output(device.F32, n)
			r.d.Fill(x, float32(v))
			return []result{r.forward("x", x, slices.Repeat([]float64{v}, n))}
		})
	}
}

func testAdd(r *rig) {
	for _, n := range lengths {
		for _, types := range r.pairs() {
			x, y := r.random(types.in, n), r.random(types.out, n)
			sum := make([]float64, n)
			for i := range sum {
				sum[i] = x[i] + y[i]
			}
			r.verify(fmt.Sprintf("%v,%d", types, n), func(r *rig) []result {
				out := r.inout(types.out, y)
				r.d.Add(out, r.input(types.in, x))
				return []result{r.forward("y", out, sum)}
			})
		}
	}
}

// testGELU also covers values far from 0 on both sides, where the tanh is ±1
// and a careless exponential overflows.
func testGELU(r *rig) {
	for _, n := range lengths {
		x, dy := r.random(r.act, n), r.random(r.act, n)
		steady(n, x, dy)
		for i := 1; i < n; i += 5 {
			x[i] *= 40
		}
		rounded(r.act, x)
		y, dx := make([]float64, n), make([]float64, n)
		for i, v := range x {
			y[i], dx[i] = refGELU(v), dy[i]*refGELUGrad(v)
		}
		r.verify(fmt.Sprint(n), func(r *rig) []result {
			at, grad := r.input(r.act, x), r.input(r.act, dy)
			out, same := r.output(r.act, n), r.inout(r.act, x)
			r.d.GELU(out, at)
			r.d.GELU(same, same)
			back, sameBack := r.output(r.act, n), r.inout(r.act, dy)
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
		x, before := r.random(device.F32, n), r.random(device.F32, 1)
		for i := range x {
			x[i] = math.Abs(x[i]) // without cancellation; with it, the bound would test the numbers, not the device
		}
		sum, squares := 0.0, math.Abs(before[0])
		for _, v := range x {
			sum += v
			squares += v * v
		}
		r.verify(fmt.Sprint(n), func(r *rig) []result {
			from, total := r.input(device.F32, x), r.output(device.F32, 1)
			norm := r.inout(device.F32, []float64{math.Abs(before[0])})
			r.d.Sum(total, from)
			r.d.SumSquares(norm, from)
			return []result{r.forward("sum", total, []float64{sum}), r.forward("sum of squares", norm, []float64{squares})}
		})
	}
}
