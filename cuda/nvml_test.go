//go:build cuda

package cuda

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"headroom/device"
	"headroom/memory"
)

func TestThrottled(t *testing.T) {
	for bits, want := range map[uint64]string{
		nvml.ClocksEventReasonNone:       "",
		nvml.ClocksEventReasonGpuIdle:    "",
		nvml.ClocksEventReasonSwPowerCap: "power cap",
		nvml.ClocksEventReasonGpuIdle | nvml.ClocksThrottleReasonHwSlowdown | nvml.ClocksThrottleReasonHwThermalSlowdown: "hardware slowdown, too hot for the hardware",
		1 << 40: "",
	} {
		words, ret := throttled(func() (uint64, nvml.Return) { return bits, nvml.SUCCESS })()
		if got := strings.Join(words, ", "); got != want || ret != nvml.SUCCESS || words == nil {
			t.Errorf("%#x: %q (nil: %t), want %q", bits, got, words == nil, want)
		}
	}
	var all uint64
	for _, s := range throttles {
		all |= s.bit
	}
	if all|nvml.ClocksEventReasonGpuIdle != nvml.ClocksEventReasonAll {
		t.Errorf("words for %#x of %#x", all, nvml.ClocksEventReasonAll)
	}
}

func TestRefused(t *testing.T) {
	for ret, want := range map[nvml.Return]bool{
		nvml.ERROR_GPU_IS_LOST: true, nvml.ERROR_RESET_REQUIRED: true, nvml.ERROR_UNKNOWN: false, nvml.ERROR_TIMEOUT: false,
	} {
		err := refused("wait", ret)
		var lost *device.Lost
		var foreign nvml.Return
		if errors.As(err, &lost) != want || errors.As(err, &foreign) || !strings.Contains(err.Error(), "wait: ") {
			t.Errorf("%v: %T %v", ret, err, err)
		}
	}
}

// watched is the first GPU as NVML sees it, or a skip.
func watched(t *testing.T) GPU {
	t.Helper()
	g, err := GPUOf(0)
	var missing *NVMLUnavailable
	skipOrFail(t, err, errors.As(err, &missing))
	return g
}

func TestGPUs(t *testing.T) {
	d := openGPU(t, Options{})
	defer d.Close() //nolint:errcheck // nothing was done on it
	first := watched(t)
	if first.Name != d.Name() {
		t.Errorf("CUDA's first is %q, NVML says %q", d.Name(), first.Name)
	}
	all, err := GPUs()
	if err != nil || len(all) == 0 {
		t.Fatalf("%d GPUs, %v", len(all), err)
	}
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

// TestOwnMemory holds that what this process allocates appears under its pid, on
// the GPU that CUDA means.
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
	own := func(g GPU) Holder {
		if i := slices.IndexFunc(g.Holders, func(h Holder) bool { return h.Self }); i >= 0 {
			return g.Holders[i]
		}
		return Holder{}
	}
	if h := own(now); h.Bytes-own(before).Bytes < size {
		t.Errorf("pid %d went from %v to %v; holders are %v", os.Getpid(), own(before).Bytes, h.Bytes, now.Holders)
	}
	if said := Took(before.Holders, now.Holders); strings.Contains(said, own(now).String()) {
		t.Errorf("this process is accused: %s", said)
	}
}

// TestWatchGPU holds that the driver takes the registration and that waiting for
// events ends with Close.
func TestWatchGPU(t *testing.T) {
	d := openGPU(t, Options{})
	defer d.Close() //nolint:errcheck // nothing was done on it
	watched(t)
	w, err := Watch(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Error(err)
	}
	for x := range w.Events() {
		t.Errorf("unexpected: %v", x)
	}
}
