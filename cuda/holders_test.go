//go:build cuda

package cuda

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"headroom/device"
	"headroom/memory"
	"headroom/nvml"
)

// watched returns the first GPU as NVML sees it, or skips the test.
func watched(t *testing.T) nvml.GPU {
	t.Helper()
	g, err := GPUOf(0)
	var missing *nvml.UnavailableError
	skipOrFail(t, err, errors.As(err, &missing))
	return g
}

// TestSameGPU checks that CUDA and NVML agree on which GPU is the first.
func TestSameGPU(t *testing.T) {
	d := openGPU(t, Options{})
	defer d.Close() //nolint:errcheck // nothing was done on it
	if first := watched(t); first.Name != d.Name() {
		t.Errorf("CUDA's first is %q, NVML says %q", d.Name(), first.Name)
	}
}

// TestOwnMemory checks that NVML reports the memory that this process
// allocates, under its pid and on the GPU that CUDA uses.
func TestOwnMemory(t *testing.T) {
	d := openGPU(t, Options{})
	defer d.Close() //nolint:errcheck // what is left is given back with the process
	const size = 2 * memory.GiB
	before := watched(t)
	block, err := d.Alloc(int(size/4), device.F32)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Free(block)
	now := watched(t)
	if now.Used-before.Used < size {
		t.Errorf("used went from %v to %v after %v were allocated", before.Used, now.Used, size)
	}
	own := func(g nvml.GPU) nvml.Holder {
		if i := slices.IndexFunc(g.Holders, func(h nvml.Holder) bool { return h.Self }); i >= 0 {
			return g.Holders[i]
		}
		return nvml.Holder{}
	}
	if h := own(now); h.Bytes-own(before).Bytes < size {
		t.Errorf("pid %d went from %v to %v; holders are %v", os.Getpid(), own(before).Bytes, h.Bytes, now.Holders)
	}
	if said := nvml.Took(before.Holders, now.Holders); strings.Contains(said, own(now).String()) {
		t.Errorf("this process is accused: %s", said)
	}
}
