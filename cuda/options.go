package cuda

import (
	"fmt"
	"time"

	"headroom/memory"
)

// Precision is the arithmetic that a device is opened for.
type Precision string

// The precisions.
const (
	FP32 Precision = "fp32" // float32 products, in float32 throughout
	TF32 Precision = "tf32" // the same, but with factors rounded to TensorFloat-32; takes effect from compute capability 8.0 on
	BF16 Precision = "bf16" // allows bfloat16 tensors too, for mixed precision; needs compute capability 8.0
)

// MostChannels is the largest attention head, in channels, for bfloat16 tensors.
const MostChannels = 128

// Options say which device to open, and how.
type Options struct {
	Ordinal   int          // the device's number, as CUDA numbers the visible devices
	Limit     memory.Bytes // the most bytes that the allocator may reserve; 0 sets no limit
	Precision Precision    // "" is FP32
}

// Validate returns an error that says what is wrong with o, or nil.
func (o Options) Validate() error {
	switch o.Precision {
	case "", FP32, TF32, BF16:
	default:
		return fmt.Errorf("precision %q: must be fp32, tf32 or bf16", o.Precision)
	}
	if o.Ordinal < 0 || o.Limit < 0 {
		return fmt.Errorf("device %d with limit %v: neither may be negative", o.Ordinal, o.Limit)
	}
	return nil
}

// Timed is the time that one kind of work took on the GPU; see [Profile].
type Timed struct {
	Name  string // of a kernel or another call; for a matrix product, with its shape and types
	Calls int
	Time  time.Duration
}
