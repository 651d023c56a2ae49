package main

import (
	"strings"
	"testing"
	"time"

	"headroom/machine"
	"headroom/memory"
)

// aSite returns a machine without a GPU and with nothing wrong.
func aSite() site {
	return site{CUDAErr: "not built in", Machine: machine.Machine{
		Platform: "linux/amd64", CPUs: 8, Memory: machine.Memory{RAM: 32 * memory.GiB, Available: 20 * memory.GiB},
		Runs: "/r/runs", DiskFree: 100 * memory.GiB, Inodes: 1e6, OpenFiles: 1024,
	}}
}

func TestExamine(t *testing.T) {
	now := time.Unix(1e9, 0)
	for name, c := range map[string]struct {
		change func(*site)
		want   string // check, state and a word of what was found
	}{
		"little memory": {func(m *site) { m.Available = memory.MiB }, "memory warn 1 MiB"},
		"cgroup":        {func(m *site) { m.Cgroup, m.CgroupUse = 2*memory.GiB, 1900*memory.MiB }, "memory warn 148 MiB"},
		"no meminfo":    {func(m *site) { m.RAM = 0 }, "memory ok unknown"},
		"a GPU":         {func(m *site) { m.GPUs = []string{"NVIDIA H200"} }, "devices warn NVIDIA H200, not usable: not built in"},
		"hidden GPUs":   {func(m *site) { m.GPUsHid = "CUDA_VISIBLE_DEVICES=-1" }, "devices ok hides"},
		"a usable GPU": {func(m *site) {
			m.CUDA, m.CUDAErr, m.CUDAFree, m.CUDASize = "NVIDIA H200", "", 100*memory.GiB, 140*memory.GiB
		}, "devices ok NVIDIA H200, 100 GiB free of 140 GiB"},
		"a broken GPU":    {func(m *site) { m.CUDA, m.CUDAErr = "NVIDIA H200", "lost" }, "devices fail NVIDIA H200: lost"},
		"read-only":       {func(m *site) { m.WriteErr = "read-only file system" }, "runs folder fail read-only"},
		"disk nearly out": {func(m *site) { m.DiskFree = memory.MiB }, "disk warn 1 MiB"},
		"no inodes":       {func(m *site) { m.Inodes = 3 }, "disk warn only 3 more files"},
		"ulimit -d":       {func(m *site) { m.DataLimit = memory.GiB }, "limits warn ulimit -d"},
		"ulimit -v":       {func(m *site) { m.AddressLimit = memory.GiB }, "limits warn ulimit -v"},
		"ulimit -t":       {func(m *site) { m.CPULimit = 60 }, "limits warn 1m0s"},
		"ssh":             {func(m *site) { m.Remote = true }, "terminal warn ssh"},
		"battery":         {func(m *site) { m.OnBattery = true }, "power warn battery"},
		"slurm":           {func(m *site) { m.JobEnds = now.Add(time.Hour) }, "time warn 1h0m0s"},
	} {
		m := aSite()
		for _, check := range examine(m, now) {
			if check.State != ok {
				t.Fatalf("a good machine: %+v", check)
			}
		}
		c.change(&m)
		found := ""
		for _, check := range examine(m, now) {
			if check.State != ok && check.Next == "" {
				t.Errorf("%s: %s does not say what to do", name, check.Name)
			}
			found += check.Name + " " + string(check.State) + " " + check.Found + "\n"
		}
		if !matches(found, c.want) {
			t.Errorf("%s: want %q in\n%s", name, c.want, found)
		}
	}
}

// matches reports whether a line of text starts with the beginning of want, up to the
// state, and contains the rest of want anywhere.
func matches(text, want string) bool {
	for _, s := range []string{" ok ", " warn ", " fail "} {
		name, word, found := strings.Cut(want, s)
		if !found {
			continue
		}
		for line := range strings.Lines(text) {
			if strings.HasPrefix(line, name+s) && strings.Contains(line, word) {
				return true
			}
		}
	}
	return false
}

func TestCheckCheckpoints(t *testing.T) {
	const gib = memory.GiB
	for _, c := range []struct {
		name       string
		free, held memory.Bytes
		n          int
		want       state
	}{
		{"room for all", 8 * gib, 0, 0, ok},
		{"room for all but the one being written", 7 * gib, 0, 0, warn},
		{"room for all beside those there", 2 * gib, 6 * gib, 3, ok},
		{"room for one", 2 * gib, 0, 0, warn},
		{"room for none", gib, 0, 0, fail},
		{"room for none beside the only one", gib, 2 * gib, 1, fail},
		{"room for none, but the oldest can make some", gib, 4 * gib, 2, warn},
	} {
		if got := checkCheckpoints(2*gib, 3, c.free, c.held, c.n); got.State != c.want || (got.Next == "") != (c.want == ok) {
			t.Errorf("%s: %+v, want %s", c.name, got, c.want)
		}
	}
}
