//go:build cuda

package cuda

import (
	"errors"
	"fmt"

	"gorgonia.org/cu"

	"headroom/device"
)

// dead lists the errors after which a context returns nothing but that error.
var dead = []error{
	cu.IllegalAddress, cu.LaunchFailed, cu.HardwareStackError, cu.IllegalInstruction, cu.MisalignedAddress,
	cu.InvalidAddressSpace, cu.InvalidPc, cu.EccUncorrectable, cu.NvlinkUncorrectable, cu.LaunchTimeout,
	cu.ContextIsDestroyed, cu.Assert, cu.Deinitialized,
}

// fault puts a driver's error into this module's terms: prefixed with what was being
// done, and as a *device.GoneError if the device is gone.
func fault(what string, err error) error {
	if err == nil {
		return nil
	}
	for _, d := range dead {
		if errors.Is(err, d) {
			return &device.GoneError{Device: "the GPU", Err: fmt.Errorf("%s: %w", what, err)}
		}
	}
	return fmt.Errorf("%s: %w", what, err)
}
