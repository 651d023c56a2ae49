//go:build cuda

package cuda

import (
	"errors"
	"fmt"

	"gorgonia.org/cu"

	"headroom/device"
)

// dead lists the errors after which every call on the context returns the same
// error.
var dead = []error{
	cu.IllegalAddress, cu.LaunchFailed, cu.HardwareStackError, cu.IllegalInstruction, cu.MisalignedAddress,
	cu.InvalidAddressSpace, cu.InvalidPc, cu.EccUncorrectable, cu.NvlinkUncorrectable, cu.LaunchTimeout,
	cu.ContextIsDestroyed, cu.Assert, cu.Deinitialized,
}

// fault wraps a driver's error with a description of what was being done. If the
// device is gone, it returns a *device.GoneError. If err is nil, it returns nil.
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
