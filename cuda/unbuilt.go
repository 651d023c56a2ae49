//go:build !cuda

package cuda

import (
	"headroom/cuda/driver"
	"headroom/device"
)

// Open says that the program was built without GPU support.
func Open(Options) (device.Device, error) { return nil, driver.Load() }
