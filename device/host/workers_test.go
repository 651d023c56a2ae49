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
	return &desk{t, d, rand.New(rand.NewPCG(1, 2))}
}

func (k *desk) out(n int) device.Tensor {
	k.t.Helper()
	x, err := k.d.Alloc(n, device.F32)
	if err != nil {
		k.t.Fatal(err)
	}
	return x
}

func (k *desk) random(n int) device.Tensor {
	k.t.Helper()
	x, values := k.out(n), make([]float32, n)
	for i := range values {
		values[i] = float32(k.rng.NormFloat64())
	}
	k.d.Upload(x, values)
	return x
}

func (k *desk) ints(n, below int) device.Tensor {
	k.t.Helper()
	x, err := k.d.Alloc(n, device.I32)
	if err != nil {
		k.t.Fatal(err)
	}
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

// everything runs each operation whose work is split, at sizes that are.
func everything(k *desk) []uint32 {
	const rows, cols = 1500, 65
	const n = rows * cols
	x, y, gamma, beta := k.random(n), k.random(n), k.random(cols), k.random(cols)
	db, dg, dgg, norm, total := k.random(cols), k.random(cols), k.random(cols), k.random(1), k.out(1)
	k.d.BiasGrad(db, x, rows, cols)
	k.d.Sum(total, x)
	k.d.SumSquares(norm, x)
	ln, mean, rstd, dx := k.out(n), k.out(rows), k.out(rows), k.out(n)
	k.d.LayerNorm(ln, mean, rstd, x, gamma, beta, rows, cols, 1e-5)
	k.d.LayerNormGrad(dx, dg, dgg, y, x, gamma, mean, rstd, rows, cols)
	c, w := k.out(rows*70), k.random(cols*70)
	k.d.MatMul(c, x, w, device.MatMul{M: rows, N: 70, K: cols})
	k.d.MatMul(w, x, c, device.MatMul{M: cols, N: 70, K: rows, TransA: true, Beta: 1})
	embed := device.Embed{B: 50, T: 30, C: cols, V: 7}
	tok, table, place := k.ints(rows, 7), k.random(7*cols), k.random(30*cols)
	k.d.EmbedGrad(table, place, y, tok, embed)
	s := device.Attention{B: 5, T: 70, H: 3, D: 10}
	size := s.B * s.T * s.H * s.D
	qkv, out, lse, dqkv := k.random(3*size), k.out(size), k.out(s.B*s.H*s.T), k.out(3*size)
	k.d.Attention(out, lse, qkv, s)
	k.d.AttentionGrad(dqkv, k.out(lse.Len), k.random(size), qkv, out, lse, s)
	loss := k.out(rows)
	k.d.CrossEntropy(loss, y, tok, rows, cols, 0.1)
	k.d.GELU(x, x)
	k.d.Dropout(x, x, tok, device.Dropout{P: 0.2, Each: cols})
	k.d.AdamW(x, dx, ln, c.View(0, n), device.AdamW{LR: 0.1, Beta1: 0.9, Beta2: 0.99, Eps: 1e-8, GradScale: 1, Step: 1})
	return k.bits(x, y, db, dg, dgg, norm, total, mean, rstd, dx, w, table, place, out, lse, dqkv, loss)
}

func TestResultsDoNotDependOnWorkers(t *testing.T) {
	want := everything(newDesk(t, 1))
	for _, workers := range []int{2, 3, 8} {
		got := everything(newDesk(t, workers))
		for i := range want {
			if got[i] != want[i] {
				t.Fatalf("%d workers: word %d is %x, with one worker %x", workers, i, got[i], want[i])
			}
		}
	}
}

// Sums over rows are rounded to float32 in the end, which hides most of a
// difference; here it is seen.
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

// A row of a product is the same whichever rows it is computed with, so that a
// smaller micro-batch changes no activation.
func TestMatMulRowsStandAlone(t *testing.T) {
	k := newDesk(t, 2)
	const rows, n, depth = 200, 300, 600
	a, b, all, one := k.random(rows*depth), k.random(depth*n), k.out(rows*n), k.out(rows*n)
	k.d.MatMul(all, a, b, device.MatMul{M: rows, N: n, K: depth})
	for r := range rows {
		k.d.MatMul(one.View(r*n, n), a.View(r*depth, depth), b, device.MatMul{M: 1, N: n, K: depth})
	}
	want, got := k.bits(all), k.bits(one)
	for i := range want {
		if got[i] != want[i] {
			t.Fatalf("row %d alone differs at column %d: %x, with others %x", i/n, i%n, got[i], want[i])
		}
	}
}

// The order of gonum's dot product goes by the address modulo 16.
func TestMatMulDoesNotDependOnAddress(t *testing.T) {
	k := newDesk(t, 2)
	const m, n, depth = 9, 11, 64
	a, b := k.random(m*depth), k.random(n*depth)
	var want []uint32
	for shift := range 4 {
		a2, b2, c := k.out(m*depth+shift).View(shift, m*depth), k.out(n*depth+shift).View(shift, n*depth), k.out(m*n)
		k.d.Copy(a2, a)
		k.d.Copy(b2, b)
		k.d.MatMul(c, a2, b2, device.MatMul{M: m, N: n, K: depth, TransB: true})
		got := k.bits(c)
		if shift == 0 {
			want = got
		}
		for i := range want {
			if got[i] != want[i] {
				t.Fatalf("operands %d elements on: element %d is %x, not %x", shift, i, got[i], want[i])
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
