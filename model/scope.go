package model

import (
	"errors"
	"slices"

	"headroom/device"
	"headroom/memory"
)

// scope is the working memory of one step or probe. Whatever is allocated in it
// and not freed is freed when it ends, however it ends. Layers therefore read
// like their formulas: alloc does not return an error but unwinds to [within].
type scope struct {
	dev       device.Device
	st        *state
	live      []device.Tensor
	phase     memory.Phase
	micro     int
	recompute bool

	dropout device.Dropout // Site and Each are filled in at each use
}

// noRoom carries the error of a failed allocation up to within.
type noRoom struct{ err error }

// within runs f in s. A failed allocation becomes the error that within
// returns, with the phase and the micro-batch filled in; any other panic goes on
// after the memory has been freed.
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

// located says where in the step memory ran out.
func (s *scope) located(err error) error {
	var oom *memory.OutOfMemory
	if errors.As(err, &oom) {
		oom.Phase, oom.Micro = s.phase, s.micro
		return oom
	}
	return err
}

// alloc returns n elements with undefined contents.
func (s *scope) alloc(n int, t device.DType) device.Tensor {
	x, err := s.dev.Alloc(n, t)
	if err != nil {
		panic(noRoom{err})
	}
	s.live = append(s.live, x)
	return x
}

func (s *scope) floats(n int) device.Tensor { return s.alloc(n, device.F32) }

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

// w is the value of a parameter, g its gradient.
func (s *scope) w(p *parameter) device.Tensor { return s.st.weights.View(p.at, p.n) }
func (s *scope) g(p *parameter) device.Tensor { return s.st.grads.View(p.at, p.n) }
