//go:build cuda

package cuda

import (
	"errors"

	"headroom/device"
	"headroom/memory"
	"headroom/nvml"
)

// Alloc is the allocator's Alloc; its error also says who else holds memory of the
// GPU, as far as NVML knows.
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
