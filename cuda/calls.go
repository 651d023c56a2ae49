//go:build cuda

package cuda

import (
	"errors"
	"fmt"
	"runtime"

	"gorgonia.org/cu"

	"headroom/device"
)

// bound is the device's context. CUDA keeps a current context per thread and Go moves
// goroutines between threads, so every call to the driver is made on a locked thread with
// the context current. Making it current costs a fraction of a launch, and spares the
// caller from being tied to one thread.
type bound struct{ context cu.CUContext }

// do calls f with the context current.
func (b *bound) do(f func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := cu.SetCurrentContext(b.context); err != nil {
		return err
	}
	return f()
}

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
