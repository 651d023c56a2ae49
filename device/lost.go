package device

import "fmt"

// Lost is a device that can't be used any more: it fell off the bus, or a
// faulty access killed its context. Everything on it is gone; only a new device
// opened in a new process helps.
type Lost struct {
	Device string
	Err    error
}

func (e *Lost) Error() string { return fmt.Sprintf("%s is lost: %v", e.Device, e.Err) }

// Unwrap is the driver's error.
func (e *Lost) Unwrap() error { return e.Err }
