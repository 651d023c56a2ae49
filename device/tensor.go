package device

import (
	"fmt"

	"headroom/memory"
)

// DType is the type of a tensor's elements.
type DType uint8

// The element types.
const (
	F32  DType = iota + 1
	I32        // tokens, targets, numbers of samples
	BF16       // bfloat16: the upper half of an F32, rounded to nearest, ties to even
)

// Size returns the size of one element in bytes.
func (t DType) Size() int {
	if t == BF16 {
		return 2
	}
	return 4
}

// Float reports whether t is F32 or BF16.
func (t DType) Float() bool { return t == F32 || t == BF16 }

func (t DType) String() string {
	switch t {
	case F32:
		return "F32"
	case I32:
		return "I32"
	case BF16:
		return "BF16"
	}
	return fmt.Sprintf("DType(%d)", uint8(t))
}

// Addr is an address in a device's memory. 0 is not an address.
type Addr uint64

// Tensor refers to a piece of device memory. It is a small value to pass
// around; copying it does not copy the contents. The zero Tensor refers to no
// memory.
type Tensor struct {
	Addr  Addr
	Len   int // elements
	DType DType
}

// Valid reports whether t refers to memory, which the zero Tensor does not.
func (t Tensor) Valid() bool { return t.Addr != 0 }

// Bytes returns the size of the contents.
func (t Tensor) Bytes() memory.Bytes { return memory.Bytes(t.Len * t.DType.Size()) }

// View returns elements [from, from+n) of t as a tensor that shares t's memory
// and must not be freed. It panics with a *[ShapeError] if t does not hold
// these elements.
func (t Tensor) View(from, n int) Tensor {
	if from < 0 || n < 0 || from+n > t.Len {
		panic(&ShapeError{Op: "View", Text: fmt.Sprintf("elements %d to %d of %d", from, from+n, t.Len)})
	}
	return Tensor{Addr: t.Addr + Addr(from*t.DType.Size()), Len: n, DType: t.DType}
}

// ShapeError reports a mistake in the program: tensors or parameters that do
// not fit an operation.
type ShapeError struct {
	Op   string
	Text string
}

func (e *ShapeError) Error() string { return fmt.Sprintf("shape: %s: %s", e.Op, e.Text) }
