package host

import (
	"fmt"
	"math"
	"unsafe"

	"headroom/device"
)

// This file holds the package's only uses of unsafe. They are sound because the
// memory is mapped outside Go's heap: the collector neither moves nor scans it,
// an address is a plain number, and the values stored there contain no
// pointers. A slice is made only from mapped bytes within the bounds that
// segments.bytes checks, and lives no longer than the operation that asked for
// it.

// PoisonInt fills a fresh I32 tensor of a device opened with Options.Poison. It
// is valid neither as a token nor as a target.
const PoisonInt int32 = -0x21524111

// address returns the address at which mem, which is mapped memory, begins.
func address(mem []byte) device.Addr {
	return device.Addr(uintptr(unsafe.Pointer(unsafe.SliceData(mem))))
}

// aligned reports whether x begins at a multiple of 16 bytes. x may be scratch on
// Go's heap: only its address is used, and objects there do not move.
func aligned(x []float32) bool { return uintptr(unsafe.Pointer(unsafe.SliceData(x)))%16 == 0 }

// ints returns the memory of t, which the operation's check found to be I32.
func (d *Device) ints(op, name string, t device.Tensor) []int32 {
	return view[int32](d, op, name, t)
}

// view returns the memory of t as elements of type E, which must match t's
// type. It panics with a *[device.ShapeError] if t does not lie in this
// device's memory.
func view[E float32 | int32 | uint16](d *Device, op, name string, t device.Tensor) []E {
	if t.Len == 0 {
		return nil
	}
	mem := d.segments.bytes(t.Addr, t.Len*t.DType.Size())
	if mem == nil || t.Addr%device.Addr(t.DType.Size()) != 0 {
		panic(&device.ShapeError{Op: op, Text: fmt.Sprintf("%s: %d elements at %#x are not in this device's memory", name, t.Len, uint64(t.Addr))})
	}
	return unsafe.Slice((*E)(unsafe.Pointer(unsafe.SliceData(mem))), t.Len)
}

// Alloc calls the allocator's Alloc. With Options.Poison it then fills the
// tensor, whose contents are otherwise undefined, with NaN or [PoisonInt].
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
