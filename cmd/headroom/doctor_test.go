package main

import (
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"headroom/memory"
)

func aMachine() machine {
	return machine{Platform: "linux/amd64", CPUs: 8, RAM: 32 * memory.GiB, Available: 20 * memory.GiB, Runs: "/r/runs", DiskFree: 100 * memory.GiB, Inodes: 1e6, OpenFiles: 1024, CUDAErr: "not built in"}
}

func TestExamine(t *testing.T) {
	now := time.Unix(1e9, 0)
	for name, c := range map[string]struct {
		change func(*machine)
		want   string // check, state and a word of what was found
	}{
		"little memory": {func(m *machine) { m.Available = memory.MiB }, "memory warn 1 MiB"},
		"cgroup":        {func(m *machine) { m.Cgroup, m.CgroupUse = 2*memory.GiB, 1900*memory.MiB }, "memory warn 148 MiB"},
		"no meminfo":    {func(m *machine) { m.RAM = 0 }, "memory ok unknown"},
		"a GPU":         {func(m *machine) { m.GPUs = []string{"NVIDIA H200"} }, "devices warn NVIDIA H200, not usable: not built in"},
		"hidden GPUs":   {func(m *machine) { m.GPUsHid = "CUDA_VISIBLE_DEVICES=-1" }, "devices ok hides"},
		"a usable GPU": {func(m *machine) {
			m.CUDA, m.CUDAErr, m.CUDAFree, m.CUDASize = "NVIDIA H200", "", 100*memory.GiB, 140*memory.GiB
		}, "devices ok NVIDIA H200, 100 GiB free of 140 GiB"},
		"a broken GPU":    {func(m *machine) { m.CUDA, m.CUDAErr = "NVIDIA H200", "lost" }, "devices fail NVIDIA H200: lost"},
		"read-only":       {func(m *machine) { m.WriteErr = "read-only file system" }, "runs folder fail read-only"},
		"disk nearly out": {func(m *machine) { m.DiskFree = memory.GiB }, "disk warn 1 GiB"},
		"no inodes":       {func(m *machine) { m.Inodes = 3 }, "disk warn 3 files"},
		"ulimit -v":       {func(m *machine) { m.AddressLimit = memory.GiB }, "limits warn ulimit -v"},
		"ulimit -t":       {func(m *machine) { m.CPULimit = 60 }, "limits warn 1m0s"},
		"ssh":             {func(m *machine) { m.Remote = true }, "terminal warn ssh"},
		"battery":         {func(m *machine) { m.OnBattery = true }, "power warn battery"},
		"slurm":           {func(m *machine) { m.JobEnds = now.Add(time.Hour) }, "time warn 1h0m0s"},
	} {
		m := aMachine()
		for _, check := range examine(m, now) {
			if check.State != ok {
				t.Fatalf("a good machine: %+v", check)
			}
		}
		c.change(&m)
		found := ""
		for _, check := range examine(m, now) {
			if check.State != ok && check.Next == "" {
				t.Errorf("%s: %s says nothing of what to do", name, check.Name)
			}
			found += check.Name + " " + string(check.State) + " " + check.Found + "\n"
		}
		if !matches(found, c.want) {
			t.Errorf("%s: want %q in\n%s", name, c.want, found)
		}
	}
}

// matches tells whether a line of text starts like want up to its state and
// holds the rest of it anywhere.
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

func TestCgroup(t *testing.T) {
	file := func(s string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(s + "\n")} }
	v2 := fstest.MapFS{
		"proc/self/cgroup":                      file("0::/a/b"),
		"sys/fs/cgroup/a/b/memory.max":          file("max"),
		"sys/fs/cgroup/a/memory.max":            file("1073741824"),
		"sys/fs/cgroup/a/memory.current":        file("1048576"),
		"sys/fs/cgroup/memory.max":              file("4294967296"),
		"sys/fs/cgroup/memory/memory.limit_in_": file("1"),
	}
	v1 := fstest.MapFS{
		"proc/self/cgroup": file("12:cpu,cpuacct:/x\n4:memory:/docker/1"),
		"sys/fs/cgroup/memory/docker/1/memory.limit_in_bytes": file("536870912"),
		"sys/fs/cgroup/memory/docker/1/memory.usage_in_bytes": file("4096"),
		"sys/fs/cgroup/memory/memory.limit_in_bytes":          file("9223372036854771712"),
	}
	for name, c := range map[string]struct {
		fs          fstest.MapFS
		limit, used memory.Bytes
	}{
		"v2, a parent's limit": {v2, memory.GiB, memory.MiB},
		"v1":                   {v1, 512 * memory.MiB, 4 * memory.KiB},
		"none":                 {fstest.MapFS{}, 0, 0},
	} {
		if limit, used := cgroup(c.fs); limit != c.limit || used != c.used {
			t.Errorf("%s: %v used of %v, want %v of %v", name, used, limit, c.used, c.limit)
		}
	}
}
