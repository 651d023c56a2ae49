package model

import "headroom/device"

// network is a model as functions on a device. It holds no memory.
type network interface {
	// forward computes the logits of a micro-batch, one row per target.
	// backward takes their gradient, frees it and all that forward kept, and
	// adds the gradients of the parameters.
	forward(s *scope, in input) (logits device.Tensor, backward func(d device.Tensor))
}

// input is a micro-batch on the device.
type input struct {
	n       int           // samples
	data    device.Tensor // tokens or features
	targets device.Tensor
	samples device.Tensor // numbers of the samples within the step
	rows    int           // targets in total
	classes int
}

// build lays out the model of s, whose sizes are all set.
func (s Spec) build() (network, *layout) {
	l := &layout{}
	var n network
	if s.Kind == GPT {
		n = newGPT(s, l)
	} else {
		n = newMLP(s, l)
	}
	l.place()
	return n, l
}
