//go:build cuda

package model

import (
	"os"

	"headroom/cuda"
	"headroom/device"
	"headroom/memory"
)

// With HEADROOM_TEST_DEVICE=cuda all tests of this package train on the first
// GPU, with nothing about them changed.
func init() {
	if os.Getenv("HEADROOM_TEST_DEVICE") == "cuda" {
		onGPU = true
		openDevice = func(capacity memory.Bytes) (device.Device, error) {
			return cuda.Open(cuda.Options{Limit: capacity})
		}
	}
}
