package main

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"headroom/cmd/headroom/ui"
	"headroom/configs"
	"headroom/cuda"
	"headroom/cuda/driver"
	"headroom/job"
	"headroom/machine"
	"headroom/memory"
	"headroom/nvml"
)

// site describes where a run would take place: the machine, and its GPUs as CUDA and
// NVML see them. Unknown amounts are 0.
type site struct {
	machine.Machine
	CUDA     string       `json:"cuda,omitempty"` // the device that a run would take
	CUDAFree memory.Bytes `json:"cuda_free"`
	CUDASize memory.Bytes `json:"cuda_memory"`
	CUDAErr  string       `json:"cuda_error,omitempty"` // why there is none, or what is wrong with it

	Driver   *nvml.Driver `json:"driver,omitempty"`
	Watched  []nvml.GPU   `json:"watched,omitempty"`     // the GPUs that CUDA may use, as NVML sees them
	WatchErr string       `json:"watch_error,omitempty"` // why NVML sees none
}

// lookAround describes this machine and its GPUs as far as the system reports them. runs
// is the folder that runs are kept in.
func lookAround(runs string) site {
	m := site{Machine: machine.Look(runs, os.LookupEnv)}
	m.watchGPUs()
	m.lookAtCUDA()
	return m
}

// lookAtCUDA opens the device that a run would take, and closes it again.
func (m *site) lookAtCUDA() {
	cfg := configs.Config{Device: configs.Device{Kind: "cuda"}}
	dev, err := job.OpenDevice(&cfg, nil)
	var missing *driver.UnavailableError
	if errors.As(err, &missing) {
		err = missing // leaves out which device was asked for: that is known
	}
	if err != nil {
		m.CUDAErr = err.Error()
		return
	}
	s := dev.Stats()
	m.CUDA, m.CUDAFree, m.CUDASize = dev.Name(), s.Free, s.Capacity
	if err := dev.Close(); err != nil {
		m.CUDAErr = err.Error()
	}
}

// watchGPUs asks NVML about the GPUs that CUDA may use. It opens none of them, so NVML
// does not report this process as one that holds their memory.
func (m *site) watchGPUs() {
	if d, err := nvml.DriverVersions(); err == nil {
		m.Driver = &d
	}
	var err error
	m.Watched, err = cuda.VisibleGPUs()
	var unwatched *nvml.UnavailableError
	if errors.As(err, &unwatched) { // any other error means that there is no CUDA: nothing to watch, and CUDAErr says why
		m.WatchErr = err.Error()
	}
}

// muchHeld is a share of a GPU's memory. If other processes hold more than this share, doctor
// warns.
const muchHeld = 0.05

// checkWatched judges what NVML reports about the GPUs that CUDA may use.
func checkWatched(m site) []check {
	var checks []check
	if m.Driver != nil && m.Driver.Version != "" {
		text := m.Driver.Version
		if m.Driver.CUDA != "" {
			text += ", supports CUDA " + m.Driver.CUDA
		}
		checks = append(checks, check{Name: "driver", State: ok, Found: text})
	}
	if m.CUDA != "" && m.WatchErr != "" {
		checks = append(checks, check{"GPU watch", warn, "memory holders, temperature, clocks and errors are unknown: " + m.WatchErr,
			"a run needs none of these, but its report will say less"})
	}
	for i, g := range m.Watched {
		checks = append(checks, checkGPU(fmt.Sprintf("GPU %d", i), g)...)
	}
	return checks
}

// checkGPU returns a check with the condition of g, and one more check for each thing that is
// wrong with g.
func checkGPU(name string, g nvml.GPU) []check {
	checks := []check{{Name: name, State: ok, Found: condition(g)}}
	if c := checkHolders(name, g); c.Found != "" {
		checks = append(checks, c)
	}
	if len(g.Throttled) > 0 {
		checks = append(checks, check{name, warn, "the clocks are held back: " + strings.Join(g.Throttled, ", "),
			fmt.Sprintf("the GPU is slower than it could be; nvidia-smi -q -i %d -d PERFORMANCE,POWER,TEMPERATURE shows more", g.Index)})
	}
	if g.UncorrectedECC > 0 {
		checks = append(checks, check{name, warn, ui.Plural(int(g.UncorrectedECC), "uncorrectable memory error") + " since the driver was loaded",
			fmt.Sprintf("each such error ends a run's process: reset the GPU (nvidia-smi --gpu-reset -i %d) or restart the machine before a long run, and have the GPU replaced if errors come back", g.Index)})
	}
	return checks
}

// condition returns what is known about g, in one line.
func condition(g nvml.GPU) string {
	parts := []string{g.Name}
	if g.Name == "" {
		parts[0] = "name not reported"
	}
	add := func(known bool, format string, args ...any) {
		if known {
			parts = append(parts, fmt.Sprintf(format, args...))
		}
	}
	add(g.Utilisation != nvml.Unknown, "%d %% busy", g.Utilisation)
	add(g.Temperature != nvml.Unknown, "%d °C", g.Temperature)
	add(g.Used != nvml.Unknown && g.Total != nvml.Unknown, "%v of %v in use", g.Used, g.Total)
	add(g.UncorrectedECC == 0, "no memory errors")
	add(len(parts) == 1, "utilisation, temperature and memory are unknown")
	return strings.Join(parts, ", ")
}

// checkHolders returns a check that names the other processes that hold memory on g. If
// there are none, the check's Found is "".
func checkHolders(name string, g nvml.GPU) check {
	const most = 5
	var who []string
	held, own := memory.Bytes(0), memory.Bytes(0)
	for _, h := range g.Holders {
		switch {
		case h.Self:
			own += max(0, h.Bytes)
			continue
		case h.Bytes == nvml.Unknown:
			who = append(who, fmt.Sprintf("%v an unknown amount", h))
		default:
			who = append(who, fmt.Sprintf("%v %v", h, h.Bytes))
		}
		held += max(0, h.Bytes)
	}
	if more := len(who) - most; more > 0 {
		who = append(who[:most], fmt.Sprintf("and %d more", more))
	}
	held = max(held, g.Used-own) // in a container, for example, other processes cannot be seen
	much := g.Total > 0 && float64(held) > muchHeld*float64(g.Total)
	c := check{Name: name, State: ok}
	switch {
	case who != nil:
		c.Found = "held by others: " + strings.Join(who, ", ")
	case much:
		c.Found = fmt.Sprintf("other processes hold %v, but they cannot be identified from here", held)
	}
	if much {
		c.State, c.Next = warn, "stop them, or choose another GPU with CUDA_VISIBLE_DEVICES or device.ordinal"
		if g.Free != nvml.Unknown {
			c.Found += fmt.Sprintf("; %v of %v is left", g.Free, g.Total)
		}
	}
	return c
}
