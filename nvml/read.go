//go:build cuda

package nvml

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"headroom/device"
	"headroom/memory"
)

// refused converts an NVML return code other than success into one of this module's
// errors. An nvml.Return must not leave this package, because as an error it is
// non-nil even for success.
func refused(what string, ret nvml.Return) error {
	err := fmt.Errorf("%s: NVML returned: %s", what, ret.Error())
	if ret == nvml.ERROR_GPU_IS_LOST || ret == nvml.ERROR_RESET_REQUIRED {
		return &device.GoneError{Device: "a GPU", Err: err}
	}
	return err
}

// ask returns the answer of f, or unknown if f does not succeed.
func ask[T any](unknown T, f func() (T, nvml.Return)) T {
	v, ret := f()
	if ret != nvml.SUCCESS {
		return unknown
	}
	return v
}

func driverVersions() (Driver, error) {
	if err := start(); err != nil {
		return Driver{}, err
	}
	d := Driver{
		Version: ask("", nvml.SystemGetDriverVersion),
		NVML:    ask("", nvml.SystemGetNVMLVersion),
	}
	if v := ask(0, nvml.SystemGetCudaDriverVersion); v > 0 {
		d.CUDA = fmt.Sprintf("%d.%d", v/1000, v%1000/10)
	}
	return d, nil
}

func gpus() ([]GPU, error) {
	if err := start(); err != nil {
		return nil, err
	}
	n, ret := nvml.DeviceGetCount()
	if ret != nvml.SUCCESS {
		return nil, &UnavailableError{refused("count GPUs", ret).Error()}
	}
	all := make([]GPU, n)
	for i := range all {
		d, ret := nvml.DeviceGetHandleByIndex(i)
		if ret != nvml.SUCCESS { // fell off the bus, or no permission
			all[i] = GPU{Index: i, Total: Unknown, Free: Unknown, Used: Unknown, Reserved: Unknown,
				Utilisation: Unknown, Temperature: Unknown, UncorrectedECC: Unknown}
			continue
		}
		all[i] = read(i, d)
	}
	return all, nil
}

func read(index int, d nvml.Device) GPU {
	g := GPU{
		Index:   index,
		UUID:    ask("", d.GetUUID),
		Name:    ask("", d.GetName),
		PCI:     ask("", func() (string, nvml.Return) { return busOf(d) }),
		Holders: holders(d),
		Utilisation: ask(Unknown, func() (int, nvml.Return) {
			u, ret := d.GetUtilizationRates()
			return int(u.Gpu), ret
		}),
		Temperature: ask(Unknown, func() (int, nvml.Return) {
			t, ret := d.GetTemperature(nvml.TEMPERATURE_GPU)
			return int(t), ret
		}),
		UncorrectedECC: ask(Unknown, func() (int64, nvml.Return) {
			n, ret := d.GetTotalEccErrors(nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.VOLATILE_ECC)
			return int64(n), ret
		}),
	}
	g.Total, g.Free, g.Used, g.Reserved = memoryOf(d)
	g.Throttled = ask(nil, throttled(d.GetCurrentClocksEventReasons))
	if g.Throttled == nil { // under the name that the function had before driver 535
		g.Throttled = ask(nil, throttled(d.GetCurrentClocksThrottleReasons))
	}
	return g
}

func busOf(d nvml.Device) (string, nvml.Return) {
	pci, ret := d.GetPciInfo()
	id, _, _ := bytes.Cut(pci.BusId[:], []byte{0})
	return string(bytes.ToLower(id)), ret
}

// memoryOf returns the memory of d in bytes. It asks NVML for version 2 of these
// numbers first, because version 1 counts memory reserved by the driver as used.
func memoryOf(d nvml.Device) (total, free, used, reserved memory.Bytes) {
	unknown := nvml.Memory_v2{}
	m := ask(unknown, d.GetMemoryInfo_v2)
	if m != unknown {
		return memory.Bytes(m.Total), memory.Bytes(m.Free), memory.Bytes(m.Used), memory.Bytes(m.Reserved)
	}
	v1 := ask(nvml.Memory{}, d.GetMemoryInfo)
	if v1 == (nvml.Memory{}) {
		return Unknown, Unknown, Unknown, Unknown
	}
	return memory.Bytes(v1.Total), memory.Bytes(v1.Free), memory.Bytes(v1.Used), Unknown
}

// holders merges the lists of compute, graphics and MPS processes. A process may be in
// more than one of them, each time with the same amount of memory.
func holders(d nvml.Device) []Holder {
	compute := ask(nil, d.GetComputeRunningProcesses)
	if compute == nil {
		return nil
	}
	graphics := ask(nil, d.GetGraphicsRunningProcesses)
	shared := ask(nil, d.GetMPSComputeRunningProcesses)
	found := map[int]memory.Bytes{}
	for _, p := range slices.Concat(compute, graphics, shared) {
		// NVML reports an unknown amount as all ones, which is -1 as a signed number:
		// Unknown.
		held, known := found[int(p.Pid)]
		if !known {
			held = Unknown
		}
		found[int(p.Pid)] = max(held, memory.Bytes(p.UsedGpuMemory))
	}
	all := make([]Holder, 0, len(found))
	for pid, held := range found {
		all = append(all, newHolder(pid, held))
	}
	largestFirst(all)
	return all
}

// throttles lists the reasons why clocks may be held back. Idleness is not one of
// them.
var throttles = []struct {
	bit  uint64
	word string
}{
	{nvml.ClocksEventReasonApplicationsClocksSetting, "application clocks are set"},
	{nvml.ClocksEventReasonSwPowerCap, "power cap"},
	{nvml.ClocksThrottleReasonHwSlowdown, "hardware slowdown"},
	{nvml.ClocksEventReasonSyncBoost, "clocks are synchronised with another GPU"},
	{nvml.ClocksEventReasonSwThermalSlowdown, "software thermal slowdown"},
	{nvml.ClocksThrottleReasonHwThermalSlowdown, "hardware thermal slowdown"},
	{nvml.ClocksThrottleReasonHwPowerBrakeSlowdown, "external power brake"},
	{nvml.ClocksEventReasonDisplayClockSetting, "display clocks are set"},
}

func throttled(reasons func() (uint64, nvml.Return)) func() ([]string, nvml.Return) {
	return func() ([]string, nvml.Return) {
		bits, ret := reasons()
		words := []string{}
		for _, t := range throttles {
			if bits&t.bit != 0 {
				words = append(words, t.word)
			}
		}
		return words, ret
	}
}
