//go:build cuda

package cuda

import (
	"fmt"

	"gorgonia.org/cu"

	"headroom/cuda/driver"
)

// Visible returns how many GPUs CUDA may use, without opening any. An error is
// a *[driver.UnavailableError], or an error of the driver.
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

// uuidOf returns the UUID of the GPU that CUDA numbers ordinal, in the form in
// which NVML writes it.
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
