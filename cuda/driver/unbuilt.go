//go:build !cuda

package driver

// Built reports whether the program was built with GPU support.
const Built = false

// Load returns an error: the program was built without GPU support.
func Load() error {
	return &UnavailableError{Reason: "this program was built without GPU support; build it with make build"}
}
