package configs

import (
	"errors"
	"fmt"

	"headroom/device"
	"headroom/device/host"
)

// ErrNoDevice is wrapped by errors that tell that a device is not there.
var ErrNoDevice = errors.New("no such device here")

// opener makes a device of one kind. A device that is not there is an
// [ErrNoDevice].
type opener struct {
	kind string
	open func(Device) (device.Device, error)
}

// openers are the kinds of devices, best first.
var openers = []opener{
	{"cuda", openCUDA},
	{"host", openHost},
}

// OpenDevice opens the device that c asks for. It is the caller's until Close.
// With device.kind auto it is the best one that there is.
func (c *Config) OpenDevice() (device.Device, error) {
	for _, o := range openers {
		if c.Device.Kind != "auto" && c.Device.Kind != o.kind {
			continue
		}
		d, err := o.open(c.Device)
		if c.Device.Kind == "auto" && errors.Is(err, ErrNoDevice) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("open device %s: %w", o.kind, err)
		}
		return d, nil
	}
	return nil, fmt.Errorf("open device %s: %w", c.Device.Kind, ErrNoDevice)
}

func openHost(d Device) (device.Device, error) {
	capacity := d.Capacity
	if capacity == 0 {
		capacity = hostCapacity
	}
	return host.Open(host.Options{Capacity: capacity})
}

func openCUDA(Device) (device.Device, error) {
	return nil, fmt.Errorf("%w: this build has no CUDA; set device.kind to auto or host", ErrNoDevice)
}
