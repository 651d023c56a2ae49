//go:build cuda

package cuda

import (
	"errors"
	"fmt"

	"gorgonia.org/cu"

	"headroom/cuda/driver"
	"headroom/device"
	"headroom/memory"
)

// gpu implements device.Device.
type gpu struct {
	*device.Allocator
	bound   *bound
	name    string
	ordinal cu.Device
	kernels *kernels
	blas    *blas
	scratch scratch
	staging staging
	pending error // the first error since the last Sync
	dead    bool  // the context is gone, and pending is never cleared
	closed  bool
	profile *profile // nil unless work is timed
}

// contextBytes is roughly the device memory that a context takes. Open reports
// it as the requested amount when there is not enough memory for a context.
const contextBytes = 500 * memory.MiB

// Open opens a GPU. If there is no driver or no such device, the error is a
// *driver.UnavailableError; if there is not enough memory for the context and the
// scratch memory, it is a *memory.OutOfMemoryError.
func Open(o Options) (device.Device, error) {
	if err := errors.Join(o.Validate(), driver.Load()); err != nil {
		return nil, err
	}
	n, err := Visible()
	if err != nil {
		return nil, err
	}
	if o.Ordinal >= n {
		return nil, &driver.UnavailableError{Reason: fmt.Sprintf("GPU %d was asked for, but the number of visible GPUs is %d; see CUDA_VISIBLE_DEVICES", o.Ordinal, n)}
	}
	g := &gpu{ordinal: cu.Device(o.Ordinal)}
	context, err := g.ordinal.RetainPrimaryCtx()
	if errors.Is(err, cu.OutOfMemory) {
		return nil, &memory.OutOfMemoryError{Requested: contextBytes}
	}
	if err != nil {
		return nil, fault(fmt.Sprintf("open GPU %d: create the context", o.Ordinal), err)
	}
	g.bound = &bound{context}
	if err := g.bound.do(func() error { return g.start(o) }); err != nil {
		return nil, errors.Join(fmt.Errorf("open GPU %d: %w", o.Ordinal, err), g.stop())
	}
	return g, nil
}

func (g *gpu) start(o Options) error {
	var err error
	if g.name, err = g.ordinal.Name(); err != nil {
		return fault("read the device's name", err)
	}
	if err := g.serves(o.Precision); err != nil {
		return err
	}
	if g.kernels, err = loadKernels(o.Precision); err != nil {
		return err
	}
	if g.blas, err = openBLAS(o.Precision); err != nil {
		return err
	}
	g.Allocator = device.NewAllocator(&segments{bound: g.bound})
	if o.Limit > 0 {
		if err := g.SetLimit(o.Limit); err != nil {
			return err
		}
	}
	if err := errors.Join(g.scratch.open(), g.staging.open()); err != nil {
		return err
	}
	return g.blas.start(g.scratch.blas)
}

// serves returns an error if p is BF16 and the GPU does not support bfloat16.
func (g *gpu) serves(p Precision) error {
	if p != BF16 {
		return nil
	}
	major, err := g.ordinal.Attribute(cu.ComputeCapabilityMajor)
	if err != nil {
		return fault("read the compute capability", err)
	}
	if major < 8 {
		return fmt.Errorf("precision bf16: %s has compute capability %d.x, but bfloat16 needs 8.0 or higher; use fp32", g.name, major)
	}
	return nil
}

// Name returns the product's name, such as "NVIDIA H200".
func (g *gpu) Name() string { return g.name }

// Sync waits for the stream and returns the first error since the last Sync.
// Once the context is gone, it always returns that error.
func (g *gpu) Sync() error {
	g.fail("wait for the stream", g.bound.do(cu.Synchronize)) //nolint:misspell // the name is cu's
	g.fail("check indices", g.bound.do(g.scratch.takeFault))
	err := g.pending
	if !g.dead {
		g.pending = nil
	}
	return err
}

// fail keeps err for Sync, unless err is nil or an earlier error has already been kept.
func (g *gpu) fail(what string, err error) {
	if err == nil || g.pending != nil {
		return
	}
	g.pending = fault(what, err)
	var lost *device.GoneError
	g.dead = errors.As(g.pending, &lost)
}

// Close waits for the stream, then gives all memory and the context back. A
// second Close does nothing.
func (g *gpu) Close() error {
	if g.closed {
		return nil
	}
	g.closed = true
	return errors.Join(g.Sync(), g.stop())
}

func (g *gpu) stop() error {
	err := g.bound.do(func() error {
		var err error
		if g.Allocator != nil && !g.dead {
			err = g.Allocator.Close()
		}
		g.staging.close()
		g.scratch.close()
		if g.blas != nil {
			g.blas.close()
		}
		g.kernels.unload()
		return err
	})
	return errors.Join(err, g.ordinal.ReleasePrimaryCtx())
}
