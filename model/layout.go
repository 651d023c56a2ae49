package model

import "headroom/memory"

// alignment is a number of elements; every parameter's offset is a multiple of it. It amounts to at
// least 512 bytes. Every device can read memory with this alignment at full speed.
const alignment = 256

// parameter is one named array of weights. It says where the array lies in the flat
// tensors of the trainer's state, and how its values are initialised.
type parameter struct {
	name  string
	shape []int
	std   float64 // standard deviation of the initial normal distribution; 0 if all values start as a constant
	value float32 // that constant
	at, n int     // the array occupies elements [at, at+n)
	room  int     // elements reserved from at on; those beyond n are 0
}

// layout places all parameters in one flat tensor. Matrices come first, because weight
// decay applies only to them: an update then takes one operation with decay and one
// without. The gaps between parameters hold zeros, as do the gaps between their gradients
// and between their moments.
type layout struct {
	list     []*parameter // in the order they were defined
	matrices int          // elements [0, matrices) hold the matrices
	total    int          // number of elements, gaps included
}

func (l *layout) matrix(name string, rows, cols int, std float64) *parameter {
	return l.padded(name, rows, rows, cols, std)
}

// padded adds a matrix with room for more rows than it has.
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

// place assigns every parameter its offset. It is called once all parameters have been
// added.
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

// Requirements is the memory that a model holds on its device between steps, which
// does not depend on the micro-batch.
type Requirements struct {
	Parameters int          // number of weights
	Weights    memory.Bytes // including the padding between them and, in mixed precision, the bfloat16 copy of the matrices
	Gradients  memory.Bytes
	Optimizer  memory.Bytes // moments
}

// Total returns the sum of Weights, Gradients and Optimizer.
func (r Requirements) Total() memory.Bytes { return r.Weights + r.Gradients + r.Optimizer }

// Requirements returns the memory that the model of s holds between steps. All sizes
// in s must be set; [Spec.Fit] sets them.
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
