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
