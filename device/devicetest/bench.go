package devicetest

import (
	"fmt"
	"math"
	"testing"

	"headroom/device"
	"headroom/memory"
)

// benchCapacity is enough memory for every shape in the benchmarks.
const benchCapacity = 256 * memory.MiB

// Bench measures the operations that decide how fast a small model trains, at the
// shapes of a GPT of width 64 with 2048 tokens in a micro-batch.
func Bench(b *testing.B, open Opener) {
	d := open(b, benchCapacity)
	defer func() {
		if err := d.Close(); err != nil {
			b.Error(err)
		}
	}()
	bench := &bench{d: d}
	for _, p := range []device.MatMul{
		{M: 2048, N: 256, K: 64}, {M: 2048, N: 64, K: 256}, // forward
		{M: 2048, N: 64, K: 256, TransB: true}, {M: 2048, N: 256, K: 64, TransB: true}, // gradient of the input
		{M: 64, N: 256, K: 2048, TransA: true, Beta: 1}, {M: 64, N: 64, K: 2048, TransA: true, Beta: 1}, // of the weights
		{M: 256, N: 256, K: 256, TransA: true, TransB: true}, {M: 2048, N: 512, K: 128},
	} {
		bench.matMul(b, device.F32, p)
	}
	bench.attention(b, device.F32, device.Attention{B: 32, T: 64, H: 4, D: 16})
	bench.attention(b, device.F32, device.Attention{B: 16, T: 128, H: 4, D: 32})
	bench.rows(b)
	bench.matMul(b, device.BF16, device.MatMul{M: 2048, N: 256, K: 64})
	bench.matMul(b, device.BF16, device.MatMul{M: 2048, N: 512, K: 128})
	bench.attention(b, device.BF16, device.Attention{B: 16, T: 128, H: 4, D: 32})
}

type bench struct{ d device.Device }

func (x *bench) tensor(b *testing.B, dtype device.DType, n int) device.Tensor {
	b.Helper()
	t, err := x.d.Alloc(n, dtype)
	if err != nil {
		b.Fatal(err)
	}
	values := make([]float32, n)
	for i := range values {
		values[i] = float32(math.Sin(float64(i)))
	}
	x.d.Upload(t, values)
	return t
}

// run measures one operation and reports the work done per nanosecond, labelled
// with unit. work is the amount of work in one call.
func (x *bench) run(b *testing.B, name string, work int, unit string, op func()) {
	b.Run(name, func(b *testing.B) {
		for b.Loop() {
			op()
		}
		if err := x.d.Sync(); err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(float64(work)*float64(b.N)/float64(b.Elapsed().Nanoseconds()), unit)
	})
}

func (x *bench) matMul(b *testing.B, dtype device.DType, p device.MatMul) {
	c, left, right := x.tensor(b, dtype, p.M*p.N), x.tensor(b, dtype, p.M*p.K), x.tensor(b, dtype, p.K*p.N)
	name := fmt.Sprintf("MatMul/%v,%dx%dx%d,%v,%v", dtype, p.M, p.N, p.K, p.TransA, p.TransB)
	x.run(b, name, 2*p.M*p.N*p.K, "GFLOP/s", func() { x.d.MatMul(c, left, right, p) })
}

// attention measures attention and its gradient. The attention is causal, so a
// query sees half of the keys on average. The GFLOP/s therefore count half of
// the work that the products for a full T×T square of scores would take. Papers
// count the full square for attention that is not causal.
func (x *bench) attention(b *testing.B, dtype device.DType, s device.Attention) {
	n := s.B * s.T * s.H * s.D
	qkv, out, lse := x.tensor(b, dtype, 3*n), x.tensor(b, dtype, n), x.tensor(b, device.F32, s.B*s.H*s.T)
	dqkv, dout, delta := x.tensor(b, dtype, 3*n), x.tensor(b, dtype, n), x.tensor(b, device.F32, s.B*s.H*s.T)
	name := fmt.Sprintf("/%v,B%d,T%d,H%d,D%d", dtype, s.B, s.T, s.H, s.D)
	x.run(b, "Attention"+name, 2*n*s.T, "GFLOP/s", func() { x.d.Attention(out, lse, qkv, s) })
	x.run(b, "AttentionGrad"+name, 5*n*s.T, "GFLOP/s", func() { x.d.AttentionGrad(dqkv, delta, dout, qkv, out, lse, s) })
}

// rows measures the operations that work row by row or element by element, in elements per
// nanosecond.
func (x *bench) rows(b *testing.B) {
	const rows, cols, each = 2048, 256, "elements/ns"
	const n = rows * cols
	tensor := func(n int) device.Tensor { return x.tensor(b, device.F32, n) }
	in, out, grad, last := tensor(n), tensor(n), tensor(n), tensor(n)
	gamma, beta, mean, rstd := tensor(cols), tensor(cols), tensor(rows), tensor(rows)
	target, err := x.d.Alloc(rows, device.I32)
	if err != nil {
		b.Fatal(err)
	}
	x.d.UploadInts(target, make([]int32, rows))
	x.d.Fill(last, 1)
	x.run(b, "LayerNorm", n, each, func() { x.d.LayerNorm(out, mean, rstd, in, gamma, beta, rows, cols, 1e-5) })
	x.run(b, "LayerNormGrad", n, each, func() { x.d.LayerNormGrad(out, gamma, beta, grad, in, last.View(0, cols), mean, rstd, rows, cols) })
	x.run(b, "GELU", n, each, func() { x.d.GELU(out, in) })
	x.run(b, "GELUGrad", n, each, func() { x.d.GELUGrad(out, in, grad) })
	x.run(b, "Add", n, each, func() { x.d.Add(out, in) })
	x.run(b, "AddBias", n, each, func() { x.d.AddBias(out, gamma, rows, cols) })
	x.run(b, "BiasGrad", n, each, func() { x.d.BiasGrad(beta, grad, rows, cols) })
	x.run(b, "SumSquares", n, each, func() { x.d.SumSquares(mean.View(0, 1), in) })
	x.run(b, "Dropout", n, each, func() { x.d.Dropout(out, in, target.View(0, 8), device.Dropout{P: 0.1, Each: n / 8}) })
	x.run(b, "CrossEntropy", n, each, func() { x.d.CrossEntropy(mean, grad, target, rows, cols, 1) })
	x.run(b, "AdamW", n, each, func() {
		x.d.AdamW(out, in, last, last, device.AdamW{LR: 1e-9, Eps: 1e-8, Beta1: 0.9, Beta2: 0.99, Step: 9})
	})
}
