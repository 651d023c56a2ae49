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

func BenchmarkDevice(b *testing.B) { devicetest.Bench(b, opener(0)) }
