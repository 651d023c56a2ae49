//go:build cuda

package cuda

import (
	"runtime"

	"gorgonia.org/cu"
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
