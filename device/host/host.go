package host

import (
	"fmt"
	"runtime"

	"headroom/device"
	"headroom/memory"
)

// Options configure a [Device].
type Options struct {
	// Capacity is the size of the device's memory, in bytes. It must be at least
	// 1.
	Capacity memory.Bytes
	// Name is shown to people; "host" if empty.
	Name string
	// Poison fills fresh tensors with NaN or [PoisonInt], so that a test notices
	// when an operation reads memory that was never written.
	Poison bool
	// Workers is the number of goroutines that an operation may use; 0 means
	// GOMAXPROCS. Results do not depend on it.
	Workers int
}

// Device is the embedded device. Like every [device.Device] it belongs to one
// goroutine.
type Device struct {
	*device.Allocator
	segments *segments
	name     string
	poison   bool
	workers  int
	pending  error // the first failure since the last Sync

	left, right []float32            // panels of a matrix product
	partial     []float64            // partial sums of reductions
	tiles       []tile               // of attention, one per worker
	wide        map[string][]float32 // float32 copies of BF16 operands, by the operand's name
}

var _ device.Device = (*Device)(nil)

// Open returns a device with o.Capacity bytes of memory. Memory is taken from
// the operating system as tensors need it. The device belongs to the caller
// until Close.
func Open(o Options) (*Device, error) {
	if o.Capacity < 1 {
		return nil, fmt.Errorf("open host device: capacity %v: must be at least 1 byte", o.Capacity)
	}
	if o.Workers < 0 {
		return nil, fmt.Errorf("open host device: %d workers: must be at least 1, or 0 for one per processor", o.Workers)
	}
	d := &Device{name: o.Name, poison: o.Poison, workers: o.Workers, wide: map[string][]float32{}}
	if d.name == "" {
		d.name = "host"
	}
	if d.workers == 0 {
		d.workers = runtime.GOMAXPROCS(0)
	}
	d.segments = &segments{capacity: o.Capacity}
	d.Allocator = device.NewAllocator(d.segments)
	d.tiles = make([]tile, d.workers)
	return d, nil
}

// Name returns Options.Name, or "host" if that was empty.
func (d *Device) Name() string { return d.name }

// Sync returns the first failure since the last Sync, or nil, and clears it. This device
// remains usable after any failure.
func (d *Device) Sync() error {
	err := d.pending
	d.pending = nil
	return err
}

// Close gives all memory back to the operating system. Closing twice is
// harmless.
func (d *Device) Close() error {
	if err := d.Allocator.Close(); err != nil {
		return fmt.Errorf("close host device: %w", err)
	}
	return nil
}

// SetForeign makes n bytes of the capacity unavailable, as if another process
// held them. Unused segments are given back first; tensors stay. Stats then
// reports n as Foreign, and up to n bytes less as Free. A later call replaces
// n; 0 makes the whole capacity available again. Negative amounts count as 0.
func (d *Device) SetForeign(n memory.Bytes) {
	if _, err := d.EmptyCache(); err != nil {
		d.fail(fmt.Errorf("give unused memory back: %w", err))
	}
	d.segments.foreign = max(0, n)
}

// fail keeps the first failure for Sync.
func (d *Device) fail(err error) {
	if d.pending == nil {
		d.pending = err
	}
}

// failed reports whether operations must be skipped until the next Sync.
func (d *Device) failed() bool { return d.pending != nil }
