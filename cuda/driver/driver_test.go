//go:build cuda

package driver_test

import (
	"errors"
	"os"
	"testing"

	"gorgonia.org/cu"

	"headroom/cuda/driver"
)

// TestWithoutLoad checks that a program that links cu starts, and that cu reports no
// device before Load. Both must hold with or without a driver on the machine.
func TestWithoutLoad(t *testing.T) {
	if n, err := cu.NumDevices(); !errors.Is(err, cu.NoDevice) || n != 0 {
		t.Errorf("before Load: %d devices, %v; want %v", n, err, cu.NoDevice)
	}
}

func TestLoad(t *testing.T) {
	err := driver.Load()
	if err == nil {
		if n, err := cu.NumDevices(); err != nil || n < 1 {
			t.Errorf("after Load: %d devices, %v", n, err)
		}
		return
	}
	var missing *driver.UnavailableError
	if !errors.As(err, &missing) {
		t.Fatalf("%T: %v", err, err)
	}
	if os.Getenv("HEADROOM_REQUIRE_GPU") == "1" {
		t.Fatal(err)
	}
	if n, err := cu.NumDevices(); !errors.Is(err, cu.NoDevice) || n != 0 {
		t.Errorf("after a failed Load: %d devices, %v", n, err)
	}
	t.Skip(err)
}
