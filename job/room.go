package job

import (
	"errors"
	"fmt"

	"headroom/configs"
	"headroom/cuda"
	"headroom/cuda/driver"
	"headroom/machine"
	"headroom/memory"
)

// CapacityError is a device.capacity larger than the memory that the machine has left.
// The embedded device lives in the machine's memory: a run that relied on such a capacity
// would be killed by the system, without any message.
type CapacityError struct {
	Capacity memory.Bytes
	Auto     bool         // the configuration leaves it open
	Room     memory.Bytes // what the machine has left
}

func (e *CapacityError) Error() string {
	value := e.Capacity.String()
	if e.Auto {
		value = "auto, which is " + value
	}
	return fmt.Sprintf("device.capacity: %s: this machine has %v left; set it below that, or free memory", value, e.Room)
}

// HostFits refuses a capacity of the embedded device above room; a room of 0 means
// that it is not known and sets no bound. The error is a *[CapacityError].
func HostFits(d configs.Device, room memory.Bytes) error {
	capacity := d.HostCapacity()
	if room == 0 || capacity <= room {
		return nil
	}
	return &CapacityError{Capacity: capacity, Auto: d.Capacity == 0, Room: room}
}

// Fits refuses a configuration that would take more of this machine's memory than
// it has left at this moment, before anything is opened. The error is a
// *[CapacityError].
func Fits(c *configs.Config) error {
	if !onHost(c.Device) {
		return nil
	}
	return HostFits(c.Device, machine.LookAtMemory().Room())
}

// onHost reports whether the device to be opened is the embedded one.
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
