package device

import "fmt"

// GoneError means that a device can't be used any more: it fell off the bus, or
// a faulty access killed its context. Everything on it is gone; only a new
// device opened in a new process helps.
type GoneError struct {
	Device string
	Err    error
}

func (e *GoneError) Error() string { return fmt.Sprintf("%s is gone: %v", e.Device, e.Err) }

// Unwrap returns the driver's error.
func (e *GoneError) Unwrap() error { return e.Err }
