package main

import (
	"errors"
	"fmt"
	"strings"

	"headroom/cuda"
	"headroom/memory"
)

// watchGPUs asks NVML about the GPUs that CUDA may use. It opens none of them,
// so this process is not among those that hold memory.
func (m *machine) watchGPUs() {
	if d, err := cuda.DriverVersions(); err == nil {
		m.Driver = &d
	}
	var err error
	m.Watched, err = cuda.VisibleGPUs()
	var unwatched *cuda.NVMLUnavailable
	if errors.As(err, &unwatched) { // without CUDA there is nothing to watch, and CUDAErr tells why
		m.WatchErr = err.Error()
	}
}

// muchHeld is the share of a GPU above which what others hold is worth a warning.
const muchHeld = 0.05

// checkWatched judges what NVML tells of the GPUs that CUDA may use.
func checkWatched(m machine) []check {
	var checks []check
	if m.Driver != nil && m.Driver.Version != "" {
		text := m.Driver.Version
		if m.Driver.CUDA != "" {
			text += ", serves CUDA " + m.Driver.CUDA
		}
		checks = append(checks, check{Name: "driver", State: ok, Found: text})
	}
	if m.CUDA != "" && m.WatchErr != "" {
		checks = append(checks, check{"GPU watch", warn, "who holds memory, temperature, clocks and errors are unknown: " + m.WatchErr,
			"a run needs none of it, and its report will say less"})
	}
	for i, g := range m.Watched {
		checks = append(checks, checkGPU(fmt.Sprintf("GPU %d", i), g)...)
	}
	return checks
}

// checkGPU tells how g is, and in lines of their own what is wrong with it.
func checkGPU(name string, g cuda.GPU) []check {
	checks := []check{{Name: name, State: ok, Found: condition(g)}}
	if c := checkHolders(name, g); c.Found != "" {
		checks = append(checks, c)
	}
	if len(g.Throttled) > 0 {
		checks = append(checks, check{name, warn, "the clocks are held back: " + strings.Join(g.Throttled, ", "),
			fmt.Sprintf("it is slower than it could be; nvidia-smi -q -i %d -d PERFORMANCE,POWER,TEMPERATURE tells more", g.Index)})
	}
	if g.UncorrectedECC > 0 {
		checks = append(checks, check{name, warn, plural(int(g.UncorrectedECC), "memory error") + " that ECC could not correct since the driver was loaded",
			fmt.Sprintf("each ends a run's process: reset the GPU (nvidia-smi --gpu-reset -i %d) or restart the machine before a long run, and have it replaced if they come back", g.Index)})
	}
	return checks
}

// condition is what is known of g in one line.
func condition(g cuda.GPU) string {
	parts := []string{g.Name}
	if g.Name == "" {
		parts[0] = "of a name that is not told"
	}
	add := func(known bool, format string, args ...any) {
		if known {
			parts = append(parts, fmt.Sprintf(format, args...))
		}
	}
	add(g.Utilisation != cuda.Unknown, "%d %% busy", g.Utilisation)
	add(g.Temperature != cuda.Unknown, "%d °C", g.Temperature)
	add(g.Used != cuda.Unknown && g.Total != cuda.Unknown, "%v of %v in use", g.Used, g.Total)
	add(g.UncorrectedECC == 0, "no memory errors")
	add(len(parts) == 1, "utilisation, temperature and memory are unknown")
	return strings.Join(parts, ", ")
}

// checkHolders names the other processes that hold memory of g. Nothing is
// found where there are none.
func checkHolders(name string, g cuda.GPU) check {
	const most = 5
	var who []string
	held, own := memory.Bytes(0), memory.Bytes(0)
	for _, h := range g.Holders {
		switch {
		case h.Self:
			own += max(0, h.Bytes)
			continue
		case h.Bytes == cuda.Unknown:
			who = append(who, fmt.Sprintf("%v an unknown amount", h))
		default:
			who = append(who, fmt.Sprintf("%v %v", h, h.Bytes))
		}
		held += max(0, h.Bytes)
	}
	if more := len(who) - most; more > 0 {
		who = append(who[:most], fmt.Sprintf("and %d more", more))
	}
	held = max(held, g.Used-own) // not every process can be seen from everywhere
	much := g.Total > 0 && float64(held) > muchHeld*float64(g.Total)
	c := check{Name: name, State: ok}
	switch {
	case who != nil:
		c.Found = "held by others: " + strings.Join(who, ", ")
	case much:
		c.Found = fmt.Sprintf("others hold %v, which ones cannot be seen from here", held)
	}
	if much {
		c.State, c.Next = warn, "stop them, or choose another GPU with CUDA_VISIBLE_DEVICES or device.ordinal"
		if g.Free != cuda.Unknown {
			c.Found += fmt.Sprintf("; %v of %v is left", g.Free, g.Total)
		}
	}
	return c
}
