package job

import (
	"errors"
	"fmt"

	"headroom/configs"
	"headroom/cuda"
	"headroom/cuda/driver"
	"headroom/device"
	"headroom/device/host"
	"headroom/machine"
	"headroom/memory"
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

// CapacityError reports a device.capacity that is larger than the memory that the machine
// has left. The embedded device keeps its data in the machine's memory. If a run used more
// of it than is left, the system would kill the run without any message.
type CapacityError struct {
	Capacity memory.Bytes
	Auto     bool         // device.capacity is auto
	Room     memory.Bytes // memory that the machine has left
}

func (e *CapacityError) Error() string {
	value := e.Capacity.String()
	if e.Auto {
		value = "auto, which is " + value
	}
	return fmt.Sprintf("device.capacity: %s: this machine has %v left; set it below that, or free memory", value, e.Room)
}

// HostFits returns a *[CapacityError] if the capacity of an embedded device opened for d
// is larger than room. A room of 0 means that the room is not known; then any capacity is
// accepted.
func HostFits(d configs.Device, room memory.Bytes) error {
	capacity := d.HostCapacity()
	if room == 0 || capacity <= room {
		return nil
	}
	return &CapacityError{Capacity: capacity, Auto: d.Capacity == 0, Room: room}
}

// Fits returns a *[CapacityError] if c asks for an embedded device that is larger than the
// memory that this machine has left at the moment. It opens nothing.
func Fits(c *configs.Config) error {
	if !onHost(c.Device) {
		return nil
	}
	return HostFits(c.Device, machine.LookAtMemory().Room())
}

// onHost reports whether the device that d asks for is the embedded one.
func onHost(d configs.Device) bool {
	if d.Kind != "auto" || len(d.Squeeze) > 0 {
		return d.Kind != "cuda"
	}
	n, err := cuda.Visible()
	if missing := (*driver.UnavailableError)(nil); errors.As(err, &missing) {
		return true
	}
	return err == nil && d.Ordinal >= n
}
