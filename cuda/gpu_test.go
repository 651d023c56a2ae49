//go:build cuda

package cuda

import (
	"errors"
	"os"
	"testing"

	"headroom/cuda/driver"
	"headroom/device"
	"headroom/device/devicetest"
	"headroom/memory"
)

// openGPU opens the first GPU, or skips: loudly, and as a failure under
// HEADROOM_REQUIRE_GPU=1.
func openGPU(t testing.TB, o Options) device.Device {
	t.Helper()
	g, err := Open(o)
	var missing *driver.Unavailable
	switch {
	case errors.As(err, &missing) && os.Getenv("HEADROOM_REQUIRE_GPU") != "1":
		t.Skip(err)
	case err != nil:
		t.Fatal(err)
	}
	return g
}

func TestDevice(t *testing.T) {
	devicetest.Run(t, func(t testing.TB, capacity memory.Bytes) device.Device {
		return openGPU(t, Options{Limit: capacity})
	}, devicetest.Float32)
}

func TestDeviceTF32(t *testing.T) {
	devicetest.Run(t, func(t testing.TB, capacity memory.Bytes) device.Device {
		return openGPU(t, Options{Limit: capacity, Precision: TF32})
	}, devicetest.Tolerance{Forward: 1e-3, Gradient: 1e-3})
}

func TestDeviceBF16(t *testing.T) {
	devicetest.Run(t, func(t testing.TB, capacity memory.Bytes) device.Device {
		return openGPU(t, Options{Limit: capacity, Precision: BF16})
	}, devicetest.Tolerance{Forward: 1e-2, Gradient: 1e-2})
}

func BenchmarkDevice(b *testing.B) {
	devicetest.Bench(b, func(t testing.TB, capacity memory.Bytes) device.Device {
		return openGPU(t, Options{Limit: capacity, Precision: TF32})
	})
}
