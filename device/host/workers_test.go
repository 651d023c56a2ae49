package host

import (
	"errors"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"headroom/device"
	"headroom/memory"
)

// desk allocates and fills tensors on a device.
type desk struct {
	t   *testing.T
	d   *Device
	act device.DType // of activations
	rng *rand.Rand
}

func newDesk(t *testing.T, workers int) *desk {
	t.Helper()
	d, err := Open(Options{Capacity: 256 * memory.MiB, Poison: true, Workers: workers})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return &desk{t, d, device.F32, rand.New(rand.NewPCG(1, 2))}
}

func (k *desk) alloc(t device.DType, n int) device.Tensor {
	k.t.Helper()
	x, err := k.d.Alloc(n, t)
	if err != nil {
		k.t.Fatal(err)
	}
	return x
}

func (k *desk) out(n int) device.Tensor {
	k.t.Helper()
	return k.alloc(device.F32, n)
}

func (k *desk) outAct(n int) device.Tensor {
	k.t.Helper()
	return k.alloc(k.act, n)
}

func (k *desk) random(n int) device.Tensor {
	k.t.Helper()
	return k.randomly(k.out(n))
}

func (k *desk) randomAct(n int) device.Tensor {
	k.t.Helper()
	return k.randomly(k.outAct(n))
}

func (k *desk) randomly(x device.Tensor) device.Tensor {
	values := make([]float32, x.Len)
	for i := range values {
		values[i] = float32(k.rng.NormFloat64())
	}
	k.d.Upload(x, values)
	return x
}

func (k *desk) ints(n, below int) device.Tensor {
	k.t.Helper()
	x := k.alloc(device.I32, n)
	values := make([]int32, n)
	for i := range values {
		values[i] = int32(k.rng.IntN(below))
	}
	k.d.UploadInts(x, values)
	return x
}

func (k *desk) bits(tensors ...device.Tensor) []uint32 {
	k.t.Helper()
	if err := k.d.Sync(); err != nil {
		k.t.Fatal(err)
	}
	var all []uint32
	for _, t := range tensors {
		values := make([]float32, t.Len)
		if err := k.d.Download(values, t); err != nil {
			k.t.Fatal(err)
		}
		for _, v := range values {
			all = append(all, math.Float32bits(v))
		}
	}
	return all
}

// everything runs each operation that can split its work among workers, at
// sizes at which it does so, and returns the bits of all outputs.
func everything(k *desk) []uint32 {
	const rows, cols = 1500, 65
	const n = rows * cols
	x, y, gamma, beta := k.randomAct(n), k.randomAct(n), k.random(cols), k.random(cols)
	weights := k.random(n)
	db, dg, dgg, norm, total := k.random(cols), k.random(cols), k.random(cols), k.random(1), k.out(1)
	k.d.BiasGrad(db, x, rows, cols)
	k.d.Sum(total, weights)
	k.d.SumSquares(norm, weights)
	ln, mean, rstd, dx := k.outAct(n), k.out(rows), k.out(rows), k.outAct(n)
	k.d.LayerNorm(ln, mean, rstd, x, gamma, beta, rows, cols, 1e-5)
	k.d.LayerNormGrad(dx, dg, dgg, y, x, gamma, mean, rstd, rows, cols)
	c, w, dw := k.outAct(rows*70), k.randomAct(cols*70), k.random(cols*70)
	k.d.MatMul(c, x, w, device.MatMul{M: rows, N: 70, K: cols})
	k.d.MatMul(dw, x, c, device.MatMul{M: cols, N: 70, K: rows, TransA: true, Beta: 1})
	embed := device.Embed{B: 50, T: 30, C: cols, V: 7}
	tok, table, place := k.ints(rows, 7), k.random(7*cols), k.random(30*cols)
	k.d.EmbedGrad(table, place, weights, tok, embed)
	s := device.Attention{B: 5, T: 70, H: 3, D: 10}
	size := s.B * s.T * s.H * s.D
	qkv, out, lse, dqkv := k.randomAct(3*size), k.outAct(size), k.out(s.B*s.H*s.T), k.outAct(3*size)
	k.d.Attention(out, lse, qkv, s)
	k.d.AttentionGrad(dqkv, k.out(lse.Len), k.randomAct(size), qkv, out, lse, s)
	loss := k.out(rows)
	k.d.CrossEntropy(loss, y, tok, rows, cols, 0.1)
	k.d.GELU(x, x)
	k.d.GELUGrad(ln, x, y)
	k.d.Add(ln, dx)
	k.d.AddBias(ln, beta, rows, cols)
	k.d.Dropout(x, x, tok, device.Dropout{P: 0.2, Each: cols})
	v := k.out(n)
	k.d.Copy(v, ln)
	k.d.AdamW(weights, k.random(n), k.random(n), v, device.AdamW{LR: 0.1, Beta1: 0.9, Beta2: 0.99, Eps: 1e-8, GradScale: 1, Step: 1})
	return k.bits(x, y, ln, c, weights, db, dg, dgg, norm, total, mean, rstd, dx, dw, table, place, out, lse, dqkv, loss)
}

func TestResultsDoNotDependOnWorkers(t *testing.T) {
	for _, act := range []device.DType{device.F32, device.BF16} {
		var want []uint32
		for _, workers := range []int{1, 2, 3, 8} {
			k := newDesk(t, workers)
			k.act = act
			got := everything(k)
			if workers == 1 {
				want = got
			}
			for i := range want {
				if got[i] != want[i] {
					t.Fatalf("%v, %d workers: word %d is %x, with one worker %x", act, workers, i, got[i], want[i])
				}
			}
		}
	}
}

// TestSumsOverRowsDoNotDependOnWorkers compares the float64 sums over rows that
// different numbers of workers compute. Operations round these sums to float32,
// which hides most differences.
func TestSumsOverRowsDoNotDependOnWorkers(t *testing.T) {
	const rows, cols = 3001, 40
	sums := func(workers int) (all [cols]float64) {
		newDesk(t, workers).d.overRows(rows, cols, cols, func(sum []float64, r int) {
			for c := range sum {
				sum[c] += 1 / float64(1+r*cols+c)
			}
		}, func(i int, sum float64) { all[i] = sum })
		return all
	}
	want := sums(1)
	for _, workers := range []int{2, 3, 8} {
		if got := sums(workers); got != want {
			t.Errorf("%d workers: %v, with one %v", workers, got, want)
		}
	}
}

// TestMatMulRowsStandAlone: a row of a product is the same whichever rows it is
// computed together with, so that a smaller micro-batch changes no activation.
func TestMatMulRowsStandAlone(t *testing.T) {
	for _, act := range []device.DType{device.F32, device.BF16} {
		matMulRowsStandAlone(t, act)
	}
}

func matMulRowsStandAlone(t *testing.T, act device.DType) {
	k := newDesk(t, 2)
	k.act = act
	const rows, n, depth = 200, 300, 600
	a, b, all, one := k.randomAct(rows*depth), k.randomAct(depth*n), k.out(rows*n), k.out(rows*n)
	k.d.MatMul(all, a, b, device.MatMul{M: rows, N: n, K: depth})
	for r := range rows {
		k.d.MatMul(one.View(r*n, n), a.View(r*depth, depth), b, device.MatMul{M: 1, N: n, K: depth})
	}
	want, got := k.bits(all), k.bits(one)
	for i := range want {
		if got[i] != want[i] {
			t.Fatalf("%v: row %d alone differs at column %d: %x, with others %x", act, i/n, i%n, got[i], want[i])
		}
	}
}

// TestMatMulDoesNotDependOnAddress: the bits of a product do not depend on the
// addresses of its operands, although the order of the sum in gonum's dot
// product depends on the address modulo 16.
func TestMatMulDoesNotDependOnAddress(t *testing.T) {
	for _, act := range []device.DType{device.F32, device.BF16} {
		matMulDoesNotDependOnAddress(t, act)
	}
}

func matMulDoesNotDependOnAddress(t *testing.T, act device.DType) {
	k := newDesk(t, 2)
	k.act = act
	const m, n, depth = 9, 11, 64
	a, b := k.randomAct(m*depth), k.randomAct(n*depth)
	var want []uint32
	for shift := range 4 {
		a2, b2, c := k.outAct(m*depth+shift).View(shift, m*depth), k.outAct(n*depth+shift).View(shift, n*depth), k.out(m*n)
		k.d.Copy(a2, a)
		k.d.Copy(b2, b)
		k.d.MatMul(c, a2, b2, device.MatMul{M: m, N: n, K: depth, TransB: true})
		got := k.bits(c)
		if shift == 0 {
			want = got
		}
		for i := range want {
			if got[i] != want[i] {
				t.Fatalf("%v operands %d elements on: element %d is %x, not %x", act, shift, i, got[i], want[i])
			}
		}
	}
}

func TestWorkerPanicReachesTheCaller(t *testing.T) {
	for _, workers := range []int{1, 4} {
		d := newDesk(t, workers).d
		cause := &device.ShapeError{Op: "Test", Text: "on purpose"}
		ran := make([]bool, 100)
		func() {
			defer func() {
				err, ok := recover().(error)
				var shape *device.ShapeError
				if !ok || !errors.As(err, &shape) || !strings.Contains(err.Error(), "on purpose") {
					t.Errorf("%d workers: recovered %v, want the worker's panic", workers, err)
				}
			}()
			d.parallel(len(ran), 1, func(_, from, _ int) {
				if from == 50 {
					panic(cause)
				}
			})
		}()
		d.parallel(len(ran), 3, func(_, from, to int) {
			for i := from; i < to; i++ {
				ran[i] = true
			}
		})
		for i := range ran {
			if !ran[i] {
				t.Errorf("%d workers: piece %d did not run after the panic", workers, i)
			}
		}
	}
}
