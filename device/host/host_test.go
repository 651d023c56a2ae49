package host

import (
	"testing"

	"headroom/device"
	"headroom/device/devicetest"
	"headroom/memory"
)

func opener(workers int) devicetest.Opener {
	return func(t testing.TB, capacity memory.Bytes) device.Device {
		d, err := Open(Options{Capacity: capacity, Poison: true, Workers: workers})
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
}

func TestConformance(t *testing.T) {
	devicetest.Run(t, opener(0), devicetest.Float32)
}

func TestMixedConformance(t *testing.T) {
	// Rounding changes a number by at most 1/256 of its size. An attention's
	// gradient is further off, because it is computed from an output that was
	// already rounded.
	devicetest.RunMixed(t, opener(0), devicetest.Tolerance{Forward: 4e-3, Gradient: 6e-3})
}

func BenchmarkDevice(b *testing.B) { devicetest.Bench(b, opener(0)) }
