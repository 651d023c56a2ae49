package device

import "fmt"

// GoneError means that a device can't be used any more, for example because it
// fell off the bus or because a faulty access killed its context. Everything on
// it is lost. The only remedy is to open a device in a new process.
type GoneError struct {
	Device string
	Err    error
}

func (e *GoneError) Error() string { return fmt.Sprintf("%s is gone: %v", e.Device, e.Err) }

// Unwrap returns the driver's error.
func (e *GoneError) Unwrap() error { return e.Err }
