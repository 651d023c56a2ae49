package cuda

import (
	"fmt"

	"headroom/memory"
)

// Precision is how matrix products compute. Tensors are float32 in any case.
type Precision string

// The precisions.
const (
	FP32 Precision = "fp32" // float32 throughout
	TF32 Precision = "tf32" // factors rounded to TensorFloat-32; from compute capability 8.0
	BF16 Precision = "bf16" // factors rounded to bfloat16; from compute capability 8.0
)

// Options say which device to open, and how.
type Options struct {
	Ordinal   int          // as CUDA numbers the visible devices
	Limit     memory.Bytes // most bytes the allocator may reserve; 0 sets no limit
	Precision Precision    // "" is FP32
}

// Validate says what is wrong with o.
func (o Options) Validate() error {
	switch o.Precision {
	case "", FP32, TF32, BF16:
	default:
		return fmt.Errorf("precision %q: fp32, tf32 or bf16", o.Precision)
	}
	if o.Ordinal < 0 || o.Limit < 0 {
		return fmt.Errorf("device %d with limit %v: neither may be negative", o.Ordinal, o.Limit)
	}
	return nil
}
