//go:build cuda

package cuda

import (
	"fmt"

	"gorgonia.org/cu"

	"headroom/cuda/driver"
)

// Visible is how many GPUs CUDA may use. It opens none. An error is a
// *[driver.UnavailableError], or the driver's.
func Visible() (int, error) {
	if err := driver.Load(); err != nil {
		return 0, err
	}
	n, err := cu.NumDevices()
	if err != nil {
		return 0, fault("count GPUs", err)
	}
	return n, nil
}

// uuidOf is the UUID of the GPU that CUDA counts as ordinal, as NVML writes it.
func uuidOf(ordinal int) (string, error) {
	if err := driver.Load(); err != nil {
		return "", err
	}
	id, err := cu.Device(ordinal).UUID()
	if err != nil {
		return "", fault(fmt.Sprintf("identify GPU %d", ordinal), err)
	}
	return "GPU-" + id.String(), nil
}
