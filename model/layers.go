package model

import "headroom/device"

// linear is the layer y = x·W + b. W is in×out, as in GPT-2; PyTorch's Linear holds the
// transpose.
type linear struct {
	weight, bias *parameter
	in, out      int
}

func (l *layout) linear(name string, in, out int, std float64) linear {
	return linear{l.matrix(name+".weight", in, out, std), l.vector(name+".bias", out, 0), in, out}
}

// forward allocates and computes y, whose elements have type t.
func (l linear) forward(s *scope, t device.DType, x device.Tensor, rows int) device.Tensor {
	y := s.alloc(rows*l.out, t)
	s.dev.MatMul(y, x, s.factor(l.weight), device.MatMul{M: rows, N: l.out, K: l.in})
	s.dev.AddBias(y, s.w(l.bias), rows, l.out)
	return y
}

// gradients adds the gradients of the layer's weight and bias to those in the trainer's
// state.
func (l linear) gradients(s *scope, dy, x device.Tensor, rows int) {
	s.dev.MatMul(s.g(l.weight), x, dy, device.MatMul{M: l.in, N: l.out, K: rows, TransA: true, Beta: 1})
	s.dev.BiasGrad(s.g(l.bias), dy, rows, l.out)
}

// input writes the gradient of the layer's input to dx.
func (l linear) input(s *scope, dx, dy device.Tensor, rows int) {
	s.dev.MatMul(dx, dy, s.factor(l.weight), device.MatMul{M: rows, N: l.in, K: l.out, TransB: true})
}

// norm is a layer normalisation.
type norm struct {
	gamma, beta *parameter
	cols        int
}

// epsilon is the constant that layer normalisation adds to the variance. GPT-2 uses the
// same value.
const epsilon = 1e-5

func (l *layout) norm(name string, cols int) norm {
	return norm{l.vector(name+".weight", cols, 1), l.vector(name+".bias", cols, 0), cols}
}

// normed is the result of a norm. stats holds the mean of every row, followed by the
// reciprocal standard deviation of every row.
type normed struct{ out, stats device.Tensor }

func (l norm) forward(s *scope, x device.Tensor, rows int) normed {
	n := normed{s.activations(rows * l.cols), s.floats(2 * rows)}
	s.dev.LayerNorm(n.out, n.stats.View(0, rows), n.stats.View(rows, rows), x, s.w(l.gamma), s.w(l.beta), rows, l.cols, epsilon)
	return n
}

// backward replaces d, the gradient of the output, with the gradient of the input x,
// and adds the gradients of gamma and beta to those in the trainer's state.
func (l norm) backward(s *scope, d, x, stats device.Tensor, rows int) {
	s.dev.LayerNormGrad(d, s.g(l.gamma), s.g(l.beta), d, x, s.w(l.gamma), stats.View(0, rows), stats.View(rows, rows), rows, l.cols)
}

// drop applies dropout to x in place. site is the number of this dropout in the model.
// The same call on a gradient is the backward pass of that dropout.
func (s *scope) drop(x device.Tensor, in input, site int) { s.dropTo(x, x, in, site) }

func (s *scope) dropTo(y, x device.Tensor, in input, site int) {
	if s.dropout.P == 0 {
		return
	}
	d := s.dropout
	d.Site, d.Each = uint32(site), x.Len/in.n
	s.dev.Dropout(y, x, in.samples, d)
}

// dropped applies the dropout with the number site to d, a gradient of the residual
// stream, and returns the result in the type of activations. If there is no dropout and d
// already has that type, it returns d itself. Otherwise it returns a new tensor, which
// [scope.freeDropped] frees.
func (s *scope) dropped(d device.Tensor, in input, site int) device.Tensor {
	if s.dropout.P == 0 && s.kind == d.DType {
		return d
	}
	y := s.activations(d.Len)
	if s.dropout.P == 0 {
		s.dev.Copy(y, d)
	} else {
		s.dropTo(y, d, in, site)
	}
	return y
}

// freeDropped frees y, which dropped returned for d, unless y is d itself.
func (s *scope) freeDropped(y, d device.Tensor) {
	if y != d {
		s.free(y)
	}
}
