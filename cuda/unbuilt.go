//go:build !cuda

package cuda

import (
	"headroom/cuda/driver"
	"headroom/device"
)

// Open returns an error: the program was built without GPU support.
func Open(Options) (device.Device, error) { return nil, driver.Load() }

// Profile returns an error: the program was built without GPU support.
func Profile(device.Device) (stop func() ([]Timed, error), err error) { return nil, driver.Load() }

// Visible returns an error: the program was built without GPU support.
func Visible() (int, error) { return 0, driver.Load() }

func uuidOf(int) (string, error) { return "", driver.Load() }
