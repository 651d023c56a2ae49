package host

import (
	"fmt"
	"math"
	"unsafe"

	"headroom/device"
)

// This file holds the package's only uses of unsafe. They are sound because the
// memory is mapped outside Go's heap: the collector neither moves nor scans it,
// an address is a plain number, and what is stored has no pointers. A slice is
// made only from the mapped bytes themselves, whose bounds segments.bytes
// checks, and lives no longer than the operation that asked for it.

// PoisonInt is what an I32 tensor holds on a poisoned device before anything is
// written: valid neither as a token nor as a target.
const PoisonInt int32 = -0x21524111

// address is where mapped memory begins.
func address(mem []byte) device.Addr {
	return device.Addr(uintptr(unsafe.Pointer(unsafe.SliceData(mem))))
}

// aligned reports whether x begins at a multiple of 16 bytes. x may be scratch on
// Go's heap: only its address is used, and objects there do not move.
func aligned(x []float32) bool { return uintptr(unsafe.Pointer(unsafe.SliceData(x)))%16 == 0 }

// ints is the memory of t, which the operation's check found to be I32.
func (d *Device) ints(op, name string, t device.Tensor) []int32 {
	return view[int32](d, op, name, t)
}

// view is the memory of t as elements of type E, which must match t's type.
func view[E float32 | int32 | uint16](d *Device, op, name string, t device.Tensor) []E {
	if t.Len == 0 {
		return nil
	}
	mem := d.segments.bytes(t.Addr, t.Len*t.DType.Size())
	if mem == nil || t.Addr%device.Addr(t.DType.Size()) != 0 {
		panic(&device.ShapeError{Op: op, Text: fmt.Sprintf("%s: %d elements at %#x are not this device's memory", name, t.Len, uint64(t.Addr))})
	}
	return unsafe.Slice((*E)(unsafe.Pointer(unsafe.SliceData(mem))), t.Len)
}

// Alloc is the allocator's Alloc; on a poisoned device it fills the contents,
// which are undefined, with the values that show most when they are used.
func (d *Device) Alloc(n int, dtype device.DType) (device.Tensor, error) {
	t, err := d.Allocator.Alloc(n, dtype)
	if err != nil || !d.poison {
		return t, err
	}
	switch nan := float32(math.NaN()); dtype {
	case device.F32:
		fill(view[float32](d, "Alloc", "t", t), nan)
	case device.BF16:
		fill(view[uint16](d, "Alloc", "t", t), device.ToBF16(nan))
	default:
		fill(d.ints("Alloc", "t", t), PoisonInt)
	}
	return t, nil
}

func fill[E any](x []E, v E) {
	for i := range x {
		x[i] = v
	}
}
