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

// openGPU opens the first GPU. If there is none, it skips the test, or fails it
// if HEADROOM_REQUIRE_GPU is 1.
func openGPU(t testing.TB, o Options) device.Device {
	t.Helper()
	g, err := Open(o)
	var missing *driver.UnavailableError
	skipOrFail(t, err, errors.As(err, &missing))
	return g
}

// skipOrFail ends the test if err is not nil. It skips the test if missing says that err
// is about something that the machine lacks, unless HEADROOM_REQUIRE_GPU is 1; otherwise
// it fails the test.
func skipOrFail(t testing.TB, err error, missing bool) {
	t.Helper()
	switch {
	case missing && os.Getenv("HEADROOM_REQUIRE_GPU") != "1":
		t.Skip(err)
	case err != nil:
		t.Fatal(err)
	}
}

// TestDevice runs the conformance suite in every precision.
func TestDevice(t *testing.T) {
	for _, c := range []struct {
		name      string
		precision Precision
		run       func(*testing.T, devicetest.Opener, devicetest.Tolerance)
		tolerance devicetest.Tolerance
	}{
		{"fp32", FP32, devicetest.Run, devicetest.Float32},
		{"tf32", TF32, devicetest.Run, devicetest.Tolerance{Forward: 1e-3, Gradient: 1e-3}},
		{"bf16", BF16, devicetest.RunMixed, devicetest.Tolerance{Forward: 1e-2, Gradient: 1e-2}},
		{"fp32 beside bf16", BF16, devicetest.Run, devicetest.Float32},
	} {
		t.Run(c.name, func(t *testing.T) {
			if err := openGPU(t, Options{}).Close(); err != nil { // skips here, once, if there is no GPU
				t.Fatal(err)
			}
			c.run(t, func(t testing.TB, capacity memory.Bytes) device.Device {
				return openGPU(t, Options{Limit: capacity, Precision: c.precision})
			}, c.tolerance)
		})
	}
}

// TestUploadsArriveWhole checks that uploads larger than the staging memory arrive
// complete, even if the source is changed as soon as Upload has returned.
func TestUploadsArriveWhole(t *testing.T) {
	g := openGPU(t, Options{})
	defer func() {
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	}()
	const n = 3*int(stageBytes)/4 + 1001 // floats: a little over three halves
	x, err := g.Alloc(n, device.F32)
	if err != nil {
		t.Fatal(err)
	}
	defer g.Free(x)
	source, arrived := make([]float32, n), make([]float32, n)
	for round := range 3 {
		for i := range source {
			source[i] = float32((i + round) % 65521)
		}
		g.Upload(x, source)
		clear(source)
		if err := g.Download(arrived, x); err != nil {
			t.Fatal(err)
		}
		for i, v := range arrived {
			if want := float32((i + round) % 65521); v != want {
				t.Fatalf("round %d: element %d arrived as %v, want %v", round, i, v, want)
			}
		}
	}
}

func BenchmarkDevice(b *testing.B) {
	devicetest.Bench(b, func(t testing.TB, capacity memory.Bytes) device.Device {
		return openGPU(t, Options{Limit: capacity, Precision: TF32})
	})
}
