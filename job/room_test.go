package job

import (
	"errors"
	"testing"

	"headroom/configs"
	"headroom/cuda"
	"headroom/memory"
)

func TestHostFits(t *testing.T) {
	for _, c := range []struct {
		capacity, room memory.Bytes
		want           string
	}{
		{0, 2 * memory.GiB, ""}, {0, memory.GiB, ""}, {memory.MiB, memory.MiB, ""}, {memory.TiB, 0, ""},
		{memory.TiB, memory.GiB, "device.capacity: 1 TiB: this machine has 1 GiB left; set it below that, or free memory"},
		{memory.MiB + 1, memory.MiB, "device.capacity: 1 MiB: this machine has 1 MiB left; set it below that, or free memory"},
		{0, 512 * memory.MiB, "device.capacity: auto, which is 1 GiB: this machine has 512 MiB left; set it below that, or free memory"},
	} {
		err := HostFits(configs.Device{Kind: "host", Capacity: c.capacity}, c.room)
		if large := (*CapacityError)(nil); errors.As(err, &large) != (c.want != "") || err != nil && err.Error() != c.want {
			t.Errorf("%v in %v: %v, want %s", c.capacity, c.room, err, c.want)
		}
	}
}

// TestFits checks that Fits compares the capacity with this machine's memory only if the
// embedded device would be used.
func TestFits(t *testing.T) {
	n, err := cuda.Visible()
	noGPU := err != nil || n == 0
	for _, c := range []struct {
		d       configs.Device
		refused bool
	}{
		{configs.Device{Kind: "host", Capacity: 1 << 60}, true},
		{configs.Device{Kind: "host", Capacity: memory.MiB}, false},
		{configs.Device{Kind: "cuda", Capacity: 1 << 60}, false},
		{configs.Device{Kind: "auto", Capacity: 1 << 60}, noGPU},
		{configs.Device{Kind: "auto", Capacity: 1 << 60, Ordinal: 1000}, true},
		{configs.Device{Kind: "auto", Capacity: 1 << 60, Squeeze: []configs.Squeeze{{From: 1, To: 2, Take: 1}}}, true},
	} {
		err := Fits(&configs.Config{Device: c.d})
		if large := (*CapacityError)(nil); errors.As(err, &large) != c.refused {
			t.Errorf("%+v: %v", c.d, err)
		}
	}
}
