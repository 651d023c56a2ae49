package main

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"headroom/memory"
	"headroom/nvml"
)

func aGPU() nvml.GPU {
	return nvml.GPU{Index: 3, UUID: "GPU-1", Name: "NVIDIA H200", PCI: "00:1", Total: 140 * memory.GiB, Free: 139 * memory.GiB, Used: memory.GiB,
		Utilisation: 12, Temperature: 45, Throttled: []string{}, Holders: []nvml.Holder{}}
}

// aWatchedSite returns a machine with one GPU and with nothing wrong.
func aWatchedSite() site {
	m := aSite()
	m.CUDA, m.CUDAErr, m.CUDAFree, m.CUDASize = "NVIDIA H200", "", 139*memory.GiB, 140*memory.GiB
	m.Driver, m.Watched = &nvml.Driver{Version: "580.1", CUDA: "13.0"}, []nvml.GPU{aGPU()}
	return m
}

func TestExamineGPUs(t *testing.T) {
	python := func(held memory.Bytes) nvml.Holder { return nvml.Holder{PID: 4711, Name: "python", Bytes: held} }
	taken := func(g *nvml.GPU, n memory.Bytes, by ...nvml.Holder) { g.Used, g.Free, g.Holders = n, g.Total-n, by }
	for name, c := range map[string]struct {
		change func(*site, *nvml.GPU)
		want   string // the lines about GPUs
	}{
		"good": {func(*site, *nvml.GPU) {}, `
ok driver 580.1, supports CUDA 13.0
ok GPU 0 NVIDIA H200, 12 % busy, 45 °C, 1 GiB of 140 GiB in use, no memory errors`},
		"a small holder is named": {func(_ *site, g *nvml.GPU) { taken(g, 2*memory.GiB, python(2*memory.GiB)) }, `
ok driver 580.1, supports CUDA 13.0
ok GPU 0 NVIDIA H200, 12 % busy, 45 °C, 2 GiB of 140 GiB in use, no memory errors
ok GPU 0 held by others: python (pid 4711) 2 GiB`},
		"large holders": {func(_ *site, g *nvml.GPU) {
			taken(g, 30*memory.GiB, python(21*memory.GiB), nvml.Holder{PID: 5, Bytes: nvml.Unknown})
		}, `
ok driver 580.1, supports CUDA 13.0
ok GPU 0 NVIDIA H200, 12 % busy, 45 °C, 30 GiB of 140 GiB in use, no memory errors
warn GPU 0 held by others: python (pid 4711) 21 GiB, pid 5 an unknown amount; 110 GiB of 140 GiB is left → stop them, or choose another GPU with CUDA_VISIBLE_DEVICES or device.ordinal`},
		"many holders": {func(_ *site, g *nvml.GPU) {
			g.Holders = []nvml.Holder{python(7), python(6), python(5), python(4), python(3), python(2), python(1)}
		}, `
ok driver 580.1, supports CUDA 13.0
ok GPU 0 NVIDIA H200, 12 % busy, 45 °C, 1 GiB of 140 GiB in use, no memory errors
ok GPU 0 held by others: python (pid 4711) 7 B, python (pid 4711) 6 B, python (pid 4711) 5 B, python (pid 4711) 4 B, python (pid 4711) 3 B, and 2 more`},
		"unseen holders": {func(_ *site, g *nvml.GPU) { taken(g, 30*memory.GiB) }, `
ok driver 580.1, supports CUDA 13.0
ok GPU 0 NVIDIA H200, 12 % busy, 45 °C, 30 GiB of 140 GiB in use, no memory errors
warn GPU 0 other processes hold 30 GiB, but they cannot be identified from here; 110 GiB of 140 GiB is left → stop them, or choose another GPU with CUDA_VISIBLE_DEVICES or device.ordinal`},
		"this process alone": {func(_ *site, g *nvml.GPU) {
			taken(g, 30*memory.GiB, nvml.Holder{PID: 1, Bytes: 30 * memory.GiB, Self: true})
		}, `
ok driver 580.1, supports CUDA 13.0
ok GPU 0 NVIDIA H200, 12 % busy, 45 °C, 30 GiB of 140 GiB in use, no memory errors`},
		"hot": {func(_ *site, g *nvml.GPU) { g.Throttled = []string{"power cap", "software thermal slowdown"} }, `
ok driver 580.1, supports CUDA 13.0
ok GPU 0 NVIDIA H200, 12 % busy, 45 °C, 1 GiB of 140 GiB in use, no memory errors
warn GPU 0 the clocks are held back: power cap, software thermal slowdown → the GPU is slower than it could be; nvidia-smi -q -i 3 -d PERFORMANCE,POWER,TEMPERATURE shows more`},
		"broken memory": {func(_ *site, g *nvml.GPU) { g.UncorrectedECC = 2 }, `
ok driver 580.1, supports CUDA 13.0
ok GPU 0 NVIDIA H200, 12 % busy, 45 °C, 1 GiB of 140 GiB in use
warn GPU 0 2 uncorrectable memory errors since the driver was loaded → each such error ends a run's process: reset the GPU (nvidia-smi --gpu-reset -i 3) or restart the machine before a long run, and have the GPU replaced if errors come back`},
		"unknown": {func(m *site, g *nvml.GPU) {
			m.Driver = &nvml.Driver{}
			*g = nvml.GPU{Total: nvml.Unknown, Free: nvml.Unknown, Used: nvml.Unknown, Reserved: nvml.Unknown, Utilisation: nvml.Unknown, Temperature: nvml.Unknown, UncorrectedECC: nvml.Unknown}
		}, `
ok GPU 0 name not reported, utilisation, temperature and memory are unknown`},
		"no NVML": {func(m *site, _ *nvml.GPU) { m.Driver, m.Watched, m.WatchErr = nil, nil, "no NVML: not found" }, `
warn GPU watch memory holders, temperature, clocks and errors are unknown: no NVML: not found → a run needs none of these, but its report will say less`},
		"a full GPU that cannot be opened": {func(m *site, g *nvml.GPU) {
			m.CUDA, m.CUDAErr = "", "out of memory"
			taken(g, 140*memory.GiB, python(140*memory.GiB))
		}, `
ok driver 580.1, supports CUDA 13.0
ok GPU 0 NVIDIA H200, 12 % busy, 45 °C, 140 GiB of 140 GiB in use, no memory errors
warn GPU 0 held by others: python (pid 4711) 140 GiB; 0 B of 140 GiB is left → stop them, or choose another GPU with CUDA_VISIBLE_DEVICES or device.ordinal`},
		"neither CUDA nor NVML": {func(m *site, _ *nvml.GPU) {
			m.CUDA, m.CUDAErr, m.Driver, m.Watched, m.WatchErr = "", "none", nil, nil, "no NVML: not found"
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			m := aWatchedSite()
			c.change(&m, &m.Watched[0])
			got := ""
			for _, check := range examine(m, time.Unix(1e9, 0)) {
				if check.Name != "driver" && !strings.HasPrefix(check.Name, "GPU ") {
					continue
				}
				got += "\n" + string(check.State) + " " + check.Name + " " + check.Found
				if check.Next != "" {
					got += " → " + check.Next
				}
			}
			if got != c.want {
				t.Errorf("\n got %s\nwant %s", got, c.want)
			}
			text, err := json.Marshal(m)
			if err != nil || strings.Contains(string(text), ":-1") {
				t.Errorf("%s, %v", text, err)
			}
		})
	}
}
