//go:build cuda

package cuda

import (
	"errors"

	"headroom/device"
	"headroom/memory"
	"headroom/nvml"
)

// Alloc calls the allocator's Alloc. If memory runs out, the error also lists the
// holders of the GPU's memory, provided that NVML reports them.
func (g *gpu) Alloc(n int, t device.DType) (device.Tensor, error) {
	x, err := g.Allocator.Alloc(n, t)
	var oom *memory.OutOfMemoryError
	if errors.As(err, &oom) {
		if now, watched := GPUOf(int(g.ordinal)); watched == nil {
			oom.Others = nvml.Took(nil, now.Holders)
		}
	}
	return x, err
}
