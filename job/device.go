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

// ErrNoDevice is wrapped by the errors that report that this machine does not have the
// device that was asked for.
var ErrNoDevice = errors.New("no such device here")

// opener opens devices of one kind. If the machine has no device of that kind, open returns
// an error that wraps [ErrNoDevice].
type opener struct {
	kind string
	open func(configs.Device) (device.Device, error)
}

// openers lists the openers of all kinds of devices, best first.
var openers = []opener{
	{"cuda", openCUDA},
	{"host", openHost},
}

// OpenDevice opens the device that c asks for. The caller owns the device and closes it.
// With device.kind auto, OpenDevice opens the best available device that can do what c asks
// for. It calls passed, if that is not nil, for every better kind that is not available. If
// c asks for bfloat16 and the GPU does not support it, OpenDevice returns an error, even
// with auto. It does not fall back to the host, where the run would take weeks: the user
// can train on the GPU in float32 instead.
func OpenDevice(c *configs.Config, passed func(kind string, why error)) (device.Device, error) {
	d, _, err := openDevice(c, passed)
	return d, err
}

// openDevice is [OpenDevice], but also returns the kind of the device, or of the device
// that could not be opened.
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
