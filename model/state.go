package model

import (
	"errors"

	"headroom/device"
	"headroom/memory"
)

// state holds the tensors that a trainer keeps on its device between steps. All
// of them are allocated when the trainer is built, so an update allocates
// nothing.
type state struct {
	layout  *layout
	weights device.Tensor
	grads   device.Tensor // scratch between steps
	moments []device.Tensor
	numbers device.Tensor // see the constants below
	factors device.Tensor // bfloat16 matrices, copied at each step; mixed precision only
}

// These are the indices of the elements of state.numbers.
const (
	lossSum   = iota // loss of the step so far, summed over targets
	lossMicro        // loss of one micro-batch, summed over targets
	squares          // sum of the squares of all gradients
	numbersLen
)

func (st *state) number(i int) device.Tensor { return st.numbers.View(i, 1) }

// part is one tensor of a state: the field that holds it, its length and its
// type.
type part struct {
	to    *device.Tensor
	n     int
	dtype device.DType
}

// parts returns all tensors of the state. mixed says whether the model trains
// in mixed precision.
func (st *state) parts(mixed bool) []part {
	all := []part{{&st.weights, st.layout.total, device.F32}, {&st.grads, st.layout.total, device.F32}}
	for i := range st.moments {
		all = append(all, part{&st.moments[i], st.layout.total, device.F32})
	}
	if mixed {
		all = append(all, part{&st.factors, st.layout.matrices, device.BF16})
	}
	return append(all, part{&st.numbers, numbersLen, device.F32})
}

// newState allocates the state of layout l. If there is not enough memory, it
// frees what it has allocated and returns a *memory.OutOfMemoryError with Phase
// load and, in Whole, the size of the whole state.
func newState(dev device.Device, l *layout, moments int, mixed bool) (*state, error) {
	st := &state{layout: l, moments: make([]device.Tensor, moments)}
	var whole memory.Bytes
	parts := st.parts(mixed)
	for _, p := range parts {
		whole += device.Tensor{Len: p.n, DType: p.dtype}.Bytes()
	}
	for _, p := range parts {
		var err error
		if *p.to, err = dev.Alloc(p.n, p.dtype); err != nil {
			st.free(dev)
			var oom *memory.OutOfMemoryError
			if errors.As(err, &oom) {
				oom.Phase, oom.Whole = memory.PhaseLoad, whole
				return nil, oom
			}
			return nil, err
		}
	}
	return st, nil
}

// lasting returns all tensors except factors, which only holds copies of
// weights.
func (st *state) lasting() []device.Tensor {
	return append([]device.Tensor{st.weights, st.grads, st.numbers}, st.moments...)
}

func (st *state) free(dev device.Device) {
	for _, x := range append(st.lasting(), st.factors) {
		if x.Valid() {
			dev.Free(x)
		}
	}
}

// initialise gives every weight its initial value and zeroes everything else.
func (st *state) initialise(dev device.Device, seed uint64) {
	for _, x := range st.lasting() {
		dev.Fill(x, 0)
	}
	for _, p := range st.layout.list {
		values := make([]float32, p.n)
		p.fill(values, seed)
		dev.Upload(st.weights.View(p.at, p.n), values)
	}
}
