package device

import "fmt"

// The check of an operation is written once, in the check_*.go files, as a function named
// Check plus the operation's name, or as a method of the type that holds the operation's
// parameters. A device calls it before anything else, so that a mistake in the program is
// found at the call that makes it, before any memory is touched. Every check panics with a
// *[ShapeError] if it fails, and allocates memory only then.

// Want panics with a *[ShapeError] unless t is a tensor of n elements of type
// d. op is the name of the operation, and name is the name of the operand in
// the operation's documentation. Want costs a few comparisons, and allocates
// memory only when it panics.
func Want(op, name string, t Tensor, n int, d DType) {
	if t.Addr != 0 && t.Len == n && t.DType == d {
		return
	}
	panic(unwanted(op, name, t, n, d.String()))
}

// WantFloat is [Want] for an operand that may be F32 or BF16.
func WantFloat(op, name string, t Tensor, n int) {
	if t.Addr != 0 && t.Len == n && t.DType.Float() {
		return
	}
	panic(unwanted(op, name, t, n, "F32 or BF16"))
}

func unwanted(op, name string, t Tensor, n int, types string) *ShapeError {
	if t.Addr == 0 {
		return &ShapeError{Op: op, Text: name + " is not a tensor"}
	}
	return &ShapeError{Op: op, Text: fmt.Sprintf("%s holds %d elements of %v, not %d of %s", name, t.Len, t.DType, n, types)}
}

// positive panics with a *[ShapeError] if a dimension is below 1. Checking
// lengths is not enough, because the product of two negative dimensions could
// be a length that fits.
func positive(op, name string, n int) {
	if n < 1 {
		panic(&ShapeError{Op: op, Text: fmt.Sprintf("%s is %d: must be at least 1", name, n)})
	}
}
