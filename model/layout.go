package model

import "headroom/memory"

// alignment is in elements: every parameter starts at a multiple of it. It is at least
// 512 bytes, an alignment at which every device can read at full speed.
const alignment = 256

// parameter is one named array of weights: where it lies in the flat tensors of
// the trainer's state, and how it starts.
type parameter struct {
	name  string
	shape []int
	std   float64 // of the initial normal distribution; 0 for a constant
	value float32 // the constant
	at, n int     // elements [at, at+n)
	room  int     // elements from at on that nothing else uses; those beyond n are 0
}

// layout places all parameters in one flat tensor. Matrices come first, because
// weight decay applies only to them and an update should take few operations.
// Gaps between parameters hold zeros, whose gradients and updates are zero.
type layout struct {
	list     []*parameter // in the order they were defined
	matrices int          // elements that hold matrices, from 0
	total    int          // elements in all
}

func (l *layout) matrix(name string, rows, cols int, std float64) *parameter {
	return l.padded(name, rows, rows, cols, std)
}

// padded is a matrix with room for more rows than it has.
func (l *layout) padded(name string, rows, room, cols int, std float64) *parameter {
	p := &parameter{name: name, shape: []int{rows, cols}, std: std, n: rows * cols, room: room * cols}
	l.list = append(l.list, p)
	return p
}

func (l *layout) vector(name string, n int, value float32) *parameter {
	p := &parameter{name: name, shape: []int{n}, value: value, n: n, room: n}
	l.list = append(l.list, p)
	return p
}

// place decides where everything lies, once everything is defined.
func (l *layout) place() {
	l.total = 0
	for _, dims := range []int{2, 1} {
		for _, p := range l.list {
			if len(p.shape) == dims {
				p.at = l.total
				l.total += (p.room + alignment - 1) / alignment * alignment
			}
		}
		if dims == 2 {
			l.matrices = l.total
		}
	}
}

// Requirements is what a model holds on its device, whatever the micro-batch.
type Requirements struct {
	Parameters int          // number of weights
	Weights    memory.Bytes // with the padding between them and, in mixed precision, their copy in bfloat16
	Gradients  memory.Bytes
	Optimizer  memory.Bytes // moments
}

// Total is the sum of all three.
func (r Requirements) Total() memory.Bytes { return r.Weights + r.Gradients + r.Optimizer }

// Requirements is what the model of s holds between steps. Every size of s must
// be set, as [Spec.Fit] leaves it.
func (s Spec) Requirements() Requirements {
	_, l := s.build()
	flat := memory.Bytes(l.total) * 4
	r := Requirements{Weights: flat, Gradients: flat}
	if s.Mixed {
		r.Weights += memory.Bytes(l.matrices) * 2
	}
	r.Optimizer = flat * memory.Bytes(len(s.Optimizer.withDefaults().moments()))
	for _, p := range l.list {
		r.Parameters += p.n
	}
	return r
}
