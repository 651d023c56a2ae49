package model

import (
	"errors"
	"slices"

	"headroom/device"
	"headroom/memory"
)

// scope is the working memory of one step or probe. Tensors that are still allocated when
// it ends are freed, even after a panic. alloc returns no error: on failure it panics, and
// [scope.within] turns that panic into an error. So the code of a layer reads like the
// layer's formula.
type scope struct {
	dev       device.Device
	st        *state
	live      []device.Tensor
	phase     memory.Phase
	micro     int
	recompute bool
	kind      device.DType // type of activations and their gradients: F32, or BF16 in mixed precision

	dropout device.Dropout // Site and Each are filled in at each use
}

// noRoom is the panic that carries the error of a failed allocation up to
// [scope.within].
type noRoom struct{ err error }

// within runs f in s. If an allocation fails, within returns its error with the
// phase and the micro-batch filled in. Any other panic continues after the memory
// has been freed.
func (s *scope) within(f func() error) (err error) {
	defer func() {
		cause := recover()
		s.freeAll()
		if failed, ok := cause.(noRoom); ok {
			err = s.located(failed.err)
		} else if cause != nil {
			panic(cause)
		}
	}()
	return f()
}

// located fills in the phase and the micro-batch of an out-of-memory error. It
// returns any other error unchanged.
func (s *scope) located(err error) error {
	var oom *memory.OutOfMemoryError
	if errors.As(err, &oom) {
		oom.Phase, oom.Micro = s.phase, s.micro
		return oom
	}
	return err
}

// alloc returns n elements with undefined contents. If there is no memory for
// them, it panics with noRoom.
func (s *scope) alloc(n int, t device.DType) device.Tensor {
	x, err := s.dev.Alloc(n, t)
	if err != nil {
		panic(noRoom{err})
	}
	s.live = append(s.live, x)
	return x
}

func (s *scope) floats(n int) device.Tensor { return s.alloc(n, device.F32) }

// activations returns n elements of the type of this model's activations.
func (s *scope) activations(n int) device.Tensor { return s.alloc(n, s.kind) }

// as returns x itself if it has type t. Otherwise it returns a copy in type t and
// frees x.
func (s *scope) as(t device.DType, x device.Tensor) device.Tensor {
	if x.DType == t {
		return x
	}
	y := s.alloc(x.Len, t)
	s.dev.Copy(y, x)
	s.free(x)
	return y
}

// ints returns a device copy of src.
func (s *scope) ints(src []int32) device.Tensor {
	x := s.alloc(len(src), device.I32)
	s.dev.UploadInts(x, src)
	return x
}

// free gives tensors back before the scope ends.
func (s *scope) free(tensors ...device.Tensor) {
	for _, x := range tensors {
		i := slices.Index(s.live, x)
		s.live = slices.Delete(s.live, i, i+1)
		s.dev.Free(x)
	}
}

func (s *scope) freeAll() {
	for _, x := range slices.Backward(s.live) {
		s.dev.Free(x)
	}
	s.live = nil
}

// w returns the values of a parameter.
func (s *scope) w(p *parameter) device.Tensor { return s.st.weights.View(p.at, p.n) }

// g returns the gradient of a parameter.
func (s *scope) g(p *parameter) device.Tensor { return s.st.grads.View(p.at, p.n) }

// factor returns matrix p in the type of the activations, for multiplication with them.
// It includes all the rows reserved for p, even those beyond the ones that p uses.
func (s *scope) factor(p *parameter) device.Tensor {
	if s.kind == device.BF16 {
		return s.st.factors.View(p.at, p.room)
	}
	return s.st.weights.View(p.at, p.room)
}

// factorGrad returns the gradient of matrix p, including all the rows reserved for p.
func (s *scope) factorGrad(p *parameter) device.Tensor { return s.st.grads.View(p.at, p.room) }

// takeFactors copies the current matrices into the factors, which exist only in mixed
// precision.
func (s *scope) takeFactors() {
	if s.kind == device.BF16 {
		s.dev.Copy(s.st.factors, s.st.weights.View(0, s.st.factors.Len))
	}
}
