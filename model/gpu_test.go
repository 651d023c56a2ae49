//go:build cuda

package model

import (
	"bytes"
	"os"
	"testing"

	"headroom/cuda"
	"headroom/device"
	"headroom/device/host"
	"headroom/memory"
)

// If HEADROOM_TEST_DEVICE is cuda, all tests of this package train on the first
// GPU instead of the embedded device.
func init() {
	if os.Getenv("HEADROOM_TEST_DEVICE") == "cuda" {
		onGPU = true
		openDevice = func(capacity memory.Bytes) (device.Device, error) {
			return cuda.Open(cuda.Options{Limit: capacity, Precision: cuda.BF16})
		}
	}
}

// TestCheckpointMovesBetweenDevices trains on the GPU, then on the host from the
// GPU's checkpoint, and then on the GPU again. Each trainer must hold what it
// loaded, bit for bit, and continue from there.
func TestCheckpointMovesBetweenDevices(t *testing.T) {
	if !onGPU {
		t.Skip("needs HEADROOM_TEST_DEVICE=cuda")
	}
	for _, s := range subjects() {
		t.Run(s.name, func(t *testing.T) {
			first, _ := s.open(t)
			last, _ := s.open(t)
			dev, err := host.Open(host.Options{Capacity: 512 * memory.MiB})
			if err != nil {
				t.Fatal(err)
			}
			between, err := New(dev, s.spec, s.set)
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := between.Close(); err != nil {
					t.Error(err)
				}
			}()
			steps(t, first, 3, plan(10, 4))
			move(t, between, first)
			steps(t, between, 2, plan(10, 4))
			move(t, last, between)
			if got := steps(t, last, 1, plan(10, 4)); got.Step != 6 {
				t.Errorf("step %d after 3, 2 and 1", got.Step)
			}
		})
	}
}

// move saves a checkpoint of the trainer from, loads it into the trainer to, and checks
// that everything arrived.
func move(t *testing.T, to, from *Trainer) {
	t.Helper()
	var sent, kept bytes.Buffer
	if err := from.Save(&sent); err != nil {
		t.Fatal(err)
	}
	if err := to.Load(bytes.NewReader(sent.Bytes())); err != nil {
		t.Fatal(err)
	}
	if err := to.Save(&kept); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(sent.Bytes(), kept.Bytes()) {
		t.Error("the checkpoint is not what it was after one load and save")
	}
	same(t, "after the move", capture(t, to), capture(t, from))
}
