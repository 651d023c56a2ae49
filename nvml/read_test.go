//go:build cuda

package nvml

import (
	"errors"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"headroom/device"
)

func TestThrottled(t *testing.T) {
	for bits, want := range map[uint64]string{
		nvml.ClocksEventReasonNone:       "",
		nvml.ClocksEventReasonGpuIdle:    "",
		nvml.ClocksEventReasonSwPowerCap: "power cap",
		nvml.ClocksEventReasonGpuIdle | nvml.ClocksThrottleReasonHwSlowdown | nvml.ClocksThrottleReasonHwThermalSlowdown: "hardware slowdown, hardware thermal slowdown",
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
		var lost *device.GoneError
		var foreign nvml.Return
		if errors.As(err, &lost) != want || errors.As(err, &foreign) || !strings.Contains(err.Error(), "wait: ") {
			t.Errorf("%v: %T %v", ret, err, err)
		}
	}
}
