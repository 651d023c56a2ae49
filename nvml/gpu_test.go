//go:build cuda

package nvml

import (
	"context"
	"os"
	"strings"
	"testing"
)

// required returns all GPUs. If there is no NVML, it skips the test, or fails it
// under HEADROOM_REQUIRE_GPU=1.
func required(t *testing.T) []GPU {
	t.Helper()
	all, err := GPUs()
	switch {
	case err != nil && os.Getenv("HEADROOM_REQUIRE_GPU") != "1":
		t.Skip(err)
	case err != nil || len(all) == 0:
		t.Fatalf("%d GPUs, %v", len(all), err)
	}
	return all
}

func TestGPUs(t *testing.T) {
	all := required(t)
	for i, g := range all {
		t.Logf("%+v", g)
		if g.Index != i || !strings.HasPrefix(g.UUID, "GPU-") || g.Name == "" || g.PCI == "" {
			t.Errorf("GPU %d is %d %q %q %q", i, g.Index, g.UUID, g.Name, g.PCI)
		}
		if g.Total <= 0 || g.Free < 0 || g.Used < 0 || g.Free+g.Used+max(0, g.Reserved) != g.Total {
			t.Errorf("GPU %d: %v free, %v used, %v reserved of %v", i, g.Free, g.Used, g.Reserved, g.Total)
		}
		if g.Utilisation < Unknown || g.Utilisation > 100 || g.Temperature < Unknown || g.Temperature > 150 || g.UncorrectedECC < Unknown {
			t.Errorf("GPU %d: %d %%, %d °C, %d ECC errors", i, g.Utilisation, g.Temperature, g.UncorrectedECC)
		}
	}
	v, err := DriverVersions()
	if err != nil || v.Version == "" || v.NVML == "" || v.CUDA == "" {
		t.Errorf("versions %+v, %v", v, err)
	}
}

// TestWatchGPU checks that the driver lets this package register for events, and that the
// wait for events ends when the context is cancelled.
func TestWatchGPU(t *testing.T) {
	required(t)
	ctx, cancel := context.WithCancel(t.Context())
	events, err := Watch(ctx)
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	for x := range events {
		t.Errorf("unexpected: %v", x)
	}
}
