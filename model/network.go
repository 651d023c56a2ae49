package model

import "headroom/device"

// network is the computation of a model. It holds no device memory itself.
type network interface {
	// forward computes the logits of a micro-batch, one row per target. The
	// caller passes the gradient of the logits to backward, which frees it and
	// everything that forward kept, and adds the gradients of the parameters to
	// those in the trainer's state.
	forward(s *scope, in input) (logits device.Tensor, backward func(d device.Tensor))
}

// input is a micro-batch on the device.
type input struct {
	n       int           // samples
	data    device.Tensor // tokens or features
	targets device.Tensor
	samples device.Tensor // numbers of the samples within the step
	rows    int           // targets of all samples together
	classes int           // vocabulary size, or number of classes
}

// build returns the network of s and the layout of its parameters. All sizes in
// s must be set.
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
