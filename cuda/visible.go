package cuda

import (
	"fmt"
	"slices"

	"headroom/nvml"
)

// GPUOf returns what NVML reports about the GPU that CUDA numbers ordinal, given
// CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER. An error is a
// *[driver.UnavailableError], a *[nvml.UnavailableError], or, for an ordinal that is
// not visible, an error of the driver. GPUOf is safe for concurrent use.
func GPUOf(ordinal int) (nvml.GPU, error) {
	found, err := gpusOf(ordinal)
	if err != nil {
		return nvml.GPU{}, err
	}
	return found[0], nil
}

// gpusOf returns the GPUs with the given ordinals. It asks CUDA for the UUID of
// each, and NVML once about all GPUs.
func gpusOf(ordinals ...int) ([]nvml.GPU, error) {
	found := make([]nvml.GPU, len(ordinals))
	for i, ordinal := range ordinals {
		var err error
		if found[i].UUID, err = uuidOf(ordinal); err != nil {
			return nil, err
		}
	}
	all, err := nvml.GPUs()
	if err != nil {
		return nil, err
	}
	for i, ordinal := range ordinals {
		at := slices.IndexFunc(all, func(g nvml.GPU) bool { return g.UUID == found[i].UUID })
		if at < 0 {
			return nil, &nvml.UnavailableError{Reason: fmt.Sprintf("NVML does not list CUDA's GPU %d (%s)", ordinal, found[i].UUID)}
		}
		found[i] = all[at]
	}
	return found, nil
}

// VisibleGPUs returns the GPUs that CUDA may use, in the order of their
// ordinals. Errors are those of [GPUOf].
func VisibleGPUs() ([]nvml.GPU, error) {
	n, err := Visible()
	if err != nil || n == 0 {
		return nil, err
	}
	ordinals := make([]int, n)
	for i := range ordinals {
		ordinals[i] = i
	}
	return gpusOf(ordinals...)
}
