package job

import (
	"errors"
	"fmt"

	"headroom/configs"
	"headroom/cuda"
	"headroom/cuda/driver"
	"headroom/device"
	"headroom/device/host"
)

// ErrNoDevice is wrapped by errors that say that a device is not there.
var ErrNoDevice = errors.New("no such device here")

// opener opens a device of one kind. For a device that is not there the error wraps
// [ErrNoDevice].
type opener struct {
	kind string
	open func(configs.Device) (device.Device, error)
}

// openers are the kinds of devices, best first.
var openers = []opener{
	{"cuda", openCUDA},
	{"host", openHost},
}

// OpenDevice opens the device that c asks for. The device belongs to the caller until
// Close. With device.kind auto it is the best available one that can do what c asks for;
// passed, if not nil, is called for every better kind that is not available. A GPU that is
// there but does not support bfloat16 is an error, not passed over: on the host the run
// would take weeks, and in float32 it fits the GPU.
func OpenDevice(c *configs.Config, passed func(kind string, why error)) (device.Device, error) {
	d, _, err := openDevice(c, passed)
	return d, err
}

// openDevice also returns the kind.
func openDevice(c *configs.Config, passed func(kind string, why error)) (device.Device, string, error) {
	auto := c.Device.Kind == "auto"
	for _, o := range openers {
		if !auto && c.Device.Kind != o.kind || auto && o.kind != "host" && len(c.Device.Squeeze) > 0 {
			continue
		}
		d, err := o.open(c.Device)
		if auto && errors.Is(err, ErrNoDevice) {
			if passed != nil {
				passed(o.kind, err)
			}
			continue
		}
		if err != nil {
			return nil, o.kind, fmt.Errorf("open device %s: %w", o.kind, err)
		}
		return d, o.kind, nil
	}
	return nil, c.Device.Kind, fmt.Errorf("open device %s: %w", c.Device.Kind, ErrNoDevice)
}

func openHost(d configs.Device) (device.Device, error) {
	return host.Open(host.Options{Capacity: d.HostCapacity()})
}

func openCUDA(d configs.Device) (device.Device, error) {
	gpu, err := cuda.Open(cuda.Options{Ordinal: d.Ordinal, Limit: d.Capacity, Precision: cuda.Precision(d.Precision)})
	var missing *driver.UnavailableError
	if errors.As(err, &missing) {
		return nil, fmt.Errorf("%w: %w", ErrNoDevice, err)
	}
	return gpu, err
}
