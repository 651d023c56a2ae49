//go:build cuda

package cuda

import (
	"bytes"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"gorgonia.org/cu"

	"headroom/cuda/driver"
	"headroom/device"
	"headroom/memory"
)

// startNVML opens the library once and keeps it open. Nothing else of it may be
// called before this has succeeded: its functions are bound when they are first
// called, and one that is not there ends the process.
var startNVML = sync.OnceValue(func() error {
	if ret := nvml.Init(); ret != nvml.SUCCESS {
		return &NVMLUnavailable{whyNoNVML(ret)}
	}
	return nil
})

func whyNoNVML(ret nvml.Return) string {
	switch ret {
	case nvml.ERROR_LIBRARY_NOT_FOUND:
		return "libnvidia-ml.so.1 cannot be opened: no driver is installed, or the container was started without NVIDIA_DRIVER_CAPABILITIES=compute,utility"
	case nvml.ERROR_DRIVER_NOT_LOADED:
		return "the driver's kernel module is not loaded"
	case nvml.ERROR_NO_PERMISSION:
		return "no permission; check that /dev/nvidia* may be read and written"
	case nvml.ERROR_LIB_RM_VERSION_MISMATCH:
		return "the driver's kernel module and library differ in version; restart the machine or reinstall the driver"
	}
	return "it does not start: " + ret.Error()
}

// refused puts an answer that is not success into this module's terms. An
// nvml.Return is a non-nil error even for success, so none may leave this file.
func refused(what string, ret nvml.Return) error {
	err := fmt.Errorf("%s: NVML answers: %s", what, ret.Error())
	if ret == nvml.ERROR_GPU_IS_LOST || ret == nvml.ERROR_RESET_REQUIRED {
		return &device.Lost{Device: "a GPU", Err: err}
	}
	return err
}

// ask is the answer of f, or unknown if there is none. An older library lacks
// some functions, hence the look at symbol, the one that f calls.
func ask[T any](symbol string, unknown T, f func() (T, nvml.Return)) T {
	if !has(symbol) {
		return unknown
	}
	v, ret := f()
	if ret != nvml.SUCCESS {
		return unknown
	}
	return v
}

func has(symbol string) bool { return nvml.Extensions().LookupSymbol(symbol) == nil }

func driverVersions() (Driver, error) {
	if err := startNVML(); err != nil {
		return Driver{}, err
	}
	d := Driver{
		Version: ask("nvmlSystemGetDriverVersion", "", nvml.SystemGetDriverVersion),
		NVML:    ask("nvmlSystemGetNVMLVersion", "", nvml.SystemGetNVMLVersion),
	}
	if v := ask("nvmlSystemGetCudaDriverVersion", 0, nvml.SystemGetCudaDriverVersion); v > 0 {
		d.CUDA = fmt.Sprintf("%d.%d", v/1000, v%1000/10)
	}
	return d, nil
}

func gpus() ([]GPU, error) {
	if err := startNVML(); err != nil {
		return nil, err
	}
	n, ret := nvml.DeviceGetCount()
	if ret != nvml.SUCCESS {
		return nil, &NVMLUnavailable{refused("count GPUs", ret).Error()}
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
		UUID:    ask("nvmlDeviceGetUUID", "", d.GetUUID),
		Name:    ask("nvmlDeviceGetName", "", d.GetName),
		PCI:     ask("nvmlDeviceGetPciInfo", "", func() (string, nvml.Return) { return busOf(d) }),
		Holders: holders(d),
		Utilisation: ask("nvmlDeviceGetUtilizationRates", Unknown, func() (int, nvml.Return) {
			u, ret := d.GetUtilizationRates()
			return int(u.Gpu), ret
		}),
		Temperature: ask("nvmlDeviceGetTemperature", Unknown, func() (int, nvml.Return) {
			t, ret := d.GetTemperature(nvml.TEMPERATURE_GPU)
			return int(t), ret
		}),
		UncorrectedECC: ask("nvmlDeviceGetTotalEccErrors", Unknown, func() (int64, nvml.Return) {
			n, ret := d.GetTotalEccErrors(nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.VOLATILE_ECC)
			return int64(n), ret
		}),
	}
	g.Total, g.Free, g.Used, g.Reserved = memoryOf(d)
	g.Throttled = ask("nvmlDeviceGetCurrentClocksEventReasons", nil, throttled(d.GetCurrentClocksEventReasons))
	if g.Throttled == nil { // by its name before driver 535
		g.Throttled = ask("nvmlDeviceGetCurrentClocksThrottleReasons", nil, throttled(d.GetCurrentClocksThrottleReasons))
	}
	return g
}

func busOf(d nvml.Device) (string, nvml.Return) {
	pci, ret := d.GetPciInfo()
	id, _, _ := bytes.Cut(pci.BusId[:], []byte{0})
	return string(bytes.ToLower(id)), ret
}

// memoryOf asks the second form first: the first counts what the driver reserves
// as used.
func memoryOf(d nvml.Device) (total, free, used, reserved memory.Bytes) {
	unknown := nvml.Memory_v2{}
	m := ask("nvmlDeviceGetMemoryInfo_v2", unknown, d.GetMemoryInfo_v2)
	if m != unknown {
		return memory.Bytes(m.Total), memory.Bytes(m.Free), memory.Bytes(m.Used), memory.Bytes(m.Reserved)
	}
	v1 := ask("nvmlDeviceGetMemoryInfo", nvml.Memory{}, d.GetMemoryInfo)
	if v1 == (nvml.Memory{}) {
		return Unknown, Unknown, Unknown, Unknown
	}
	return memory.Bytes(v1.Total), memory.Bytes(v1.Free), memory.Bytes(v1.Used), Unknown
}

// holders merges the lists of computing, drawing and shared processes: one
// process may be on more than one, with the same figure.
func holders(d nvml.Device) []Holder {
	compute := ask("nvmlDeviceGetComputeRunningProcesses", nil, d.GetComputeRunningProcesses)
	if compute == nil {
		return nil
	}
	graphics := ask("nvmlDeviceGetGraphicsRunningProcesses", nil, d.GetGraphicsRunningProcesses)
	shared := ask("nvmlDeviceGetMPSComputeRunningProcesses", nil, d.GetMPSComputeRunningProcesses)
	found := map[int]memory.Bytes{}
	for _, p := range slices.Concat(compute, graphics, shared) {
		// What NVML does not know is all ones: -1 as a signed number, which is Unknown.
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

// throttles are what may hold the clocks back. Idleness does not.
var throttles = []struct {
	bit  uint64
	word string
}{
	{nvml.ClocksEventReasonApplicationsClocksSetting, "application clocks are set"},
	{nvml.ClocksEventReasonSwPowerCap, "power cap"},
	{nvml.ClocksThrottleReasonHwSlowdown, "hardware slowdown"},
	{nvml.ClocksEventReasonSyncBoost, "clocks are synchronised with another GPU"},
	{nvml.ClocksEventReasonSwThermalSlowdown, "too hot for the driver"},
	{nvml.ClocksThrottleReasonHwThermalSlowdown, "too hot for the hardware"},
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

// countVisible is how many GPUs CUDA may use.
func countVisible() (int, error) {
	if err := driver.Load(); err != nil {
		return 0, err
	}
	n, err := cu.NumDevices()
	if err != nil {
		return 0, fault("count GPUs", err)
	}
	return n, nil
}

// uuidOf is the UUID of the GPU that CUDA counts as ordinal, as NVML writes it.
func uuidOf(ordinal int) (string, error) {
	if err := driver.Load(); err != nil {
		return "", err
	}
	id, err := cu.Device(ordinal).UUID()
	if err != nil {
		return "", fault(fmt.Sprintf("identify GPU %d", ordinal), err)
	}
	return "GPU-" + id.String(), nil
}

// events is a set of NVML's in which the GPUs that report Xid events are
// registered. Events name a GPU by its handle, which may no longer answer then.
type events struct {
	set nvml.EventSet
	of  map[nvml.Device]Xid // all but code and time
}

func openXids() (source, error) {
	if err := startNVML(); err != nil {
		return nil, err
	}
	for _, symbol := range []string{"nvmlEventSetCreate", "nvmlEventSetWait", "nvmlEventSetFree", "nvmlDeviceRegisterEvents"} {
		if !has(symbol) {
			return nil, &NVMLUnavailable{"it has no " + symbol}
		}
	}
	n, ret := nvml.DeviceGetCount()
	if ret != nvml.SUCCESS {
		return nil, &NVMLUnavailable{refused("count GPUs", ret).Error()}
	}
	set, ret := nvml.EventSetCreate()
	if ret != nvml.SUCCESS {
		return nil, &NVMLUnavailable{refused("make an event set", ret).Error()}
	}
	e := &events{set: set, of: map[nvml.Device]Xid{}}
	for i := range n {
		e.register(i)
	}
	if len(e.of) == 0 {
		e.close()
		return nil, &NVMLUnavailable{fmt.Sprintf("none of %d GPUs reports Xid events", n)}
	}
	return e, nil
}

// register adds a GPU if it reports Xid events.
func (e *events) register(index int) {
	d, ret := nvml.DeviceGetHandleByIndex(index)
	if ret != nvml.SUCCESS || d.RegisterEvents(nvml.EventTypeXidCriticalError, e.set) != nvml.SUCCESS {
		return
	}
	e.of[d] = Xid{GPU: index, UUID: ask("nvmlDeviceGetUUID", "", d.GetUUID)}
}

func (e *events) wait(d time.Duration) (Xid, bool, error) {
	data, ret := e.set.Wait(uint32(d.Milliseconds()))
	switch {
	case ret == nvml.ERROR_TIMEOUT:
		return Xid{}, false, nil
	case ret != nvml.SUCCESS:
		return Xid{}, false, refused("wait for Xid events", ret)
	case data.EventType != nvml.EventTypeXidCriticalError:
		return Xid{}, false, nil
	}
	x, ok := e.of[data.Device]
	if !ok {
		x.GPU = Unknown
	}
	x.Time, x.Code = time.Now(), int(data.EventData)
	return x, true, nil
}

// close has nobody to tell if the set is refused; it goes with the process.
func (e *events) close() { _ = e.set.Free() }
