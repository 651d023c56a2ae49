package model

import (
	"errors"

	"headroom/device"
	"headroom/memory"
)

// state is what a trainer holds on its device between steps. All of it is
// allocated when the trainer is built, so an update allocates nothing.
type state struct {
	layout  *layout
	weights device.Tensor
	grads   device.Tensor // scratch between steps
	moments []device.Tensor
	numbers device.Tensor // see the constants below
}

// Elements of state.numbers.
const (
	lossSum   = iota // of the step so far
	lossMicro        // of one micro-batch
	squares          // of all gradients
	numbersLen
)

func (st *state) number(i int) device.Tensor { return st.numbers.View(i, 1) }

// newState allocates the state of layout l. When there is no room it frees what
// it has and returns the *memory.OutOfMemory with Phase load.
func newState(dev device.Device, l *layout, moments int) (*state, error) {
	st := &state{layout: l, moments: make([]device.Tensor, moments)}
	parts := []*device.Tensor{&st.weights, &st.grads}
	for i := range st.moments {
		parts = append(parts, &st.moments[i])
	}
	for _, x := range append(parts, &st.numbers) {
		n := l.total
		if x == &st.numbers {
			n = numbersLen
		}
		var err error
		if *x, err = dev.Alloc(n, device.F32); err != nil {
			st.free(dev)
			var oom *memory.OutOfMemory
			if errors.As(err, &oom) {
				oom.Phase = memory.PhaseLoad
				oom.Whole = memory.Bytes(4 * (l.total*(2+moments) + numbersLen))
				return nil, oom
			}
			return nil, err
		}
	}
	return st, nil
}

func (st *state) tensors() []device.Tensor {
	return append([]device.Tensor{st.weights, st.grads, st.numbers}, st.moments...)
}

func (st *state) free(dev device.Device) {
	for _, x := range st.tensors() {
		if x.Valid() {
			dev.Free(x)
		}
	}
}

// initialise gives every weight its initial value and zeroes all else.
func (st *state) initialise(dev device.Device, seed uint64) {
	for _, x := range st.tensors() {
		dev.Fill(x, 0)
	}
	for _, p := range st.layout.list {
		values := make([]float32, p.n)
		p.fill(values, seed)
		dev.Upload(st.weights.View(p.at, p.n), values)
	}
}
