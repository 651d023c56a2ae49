package model

import (
	"fmt"
	"math"

	"headroom/device"
)

// mlp is a multi-layer perceptron: hidden layers of GELU(x·W + b), each
// followed by dropout, and a linear output.
type mlp struct {
	hidden []linear
	output linear
}

// newMLP builds the perceptron and adds its parameters to l, named fc.0.weight,
// fc.0.bias, …, head.weight, head.bias. The initial weights are drawn from N(0,
// 2/in) in the hidden layers, which GELU follows (He and others, 2015), and
// from N(0, 1/in) in the output layer.
func newMLP(s Spec, l *layout) *mlp {
	m := &mlp{}
	in := s.Features
	for i := range s.Layers {
		m.hidden = append(m.hidden, l.linear(fmt.Sprintf("fc.%d", i), in, s.Width, math.Sqrt(2/float64(in))))
		in = s.Width
	}
	m.output = l.linear("head", in, s.Classes, math.Sqrt(1/float64(in)))
	return m
}

func (m *mlp) forward(s *scope, in input) (device.Tensor, func(device.Tensor)) {
	x := in.data
	inputs, sums := make([]device.Tensor, len(m.hidden)), make([]device.Tensor, len(m.hidden))
	for i, layer := range m.hidden {
		inputs[i] = x
		sums[i] = layer.forward(s, s.kind, x, in.n)
		x = s.activations(in.n * layer.out)
		s.dev.GELU(x, sums[i])
		s.drop(x, in, i)
		if s.recompute {
			s.free(sums[i])
		}
	}
	logits := m.output.forward(s, s.kind, x, in.n)
	return logits, func(d device.Tensor) {
		d = m.back(s, m.output, d, x, in.n)
		for i := len(m.hidden) - 1; i >= 0; i-- {
			if s.recompute {
				sums[i] = m.hidden[i].forward(s, s.kind, inputs[i], in.n)
			}
			s.drop(d, in, i)
			s.dev.GELUGrad(d, sums[i], d)
			s.free(sums[i])
			if i > 0 {
				d = m.back(s, m.hidden[i], d, inputs[i], in.n)
			} else {
				m.hidden[0].gradients(s, d, in.data, in.n)
				s.free(d)
			}
		}
	}
}

// back runs the backward pass of one layer and frees d. It overwrites the
// layer's input x, which is no longer needed, with the gradient of x, and
// returns it.
func (m *mlp) back(s *scope, l linear, d, x device.Tensor, rows int) device.Tensor {
	l.gradients(s, d, x, rows)
	l.input(s, x, d, rows)
	s.free(d)
	return x
}
