package machine

import (
	"testing"
	"testing/fstest"

	"headroom/memory"
)

func TestMemory(t *testing.T) {
	meminfo := file("MemTotal:       8388608 kB\nMemFree:         100 kB\nMemAvailable:    4194304 kB\nSwapFree:  1024 kB\nHugePages_Total:       7")
	v2 := func(limit, used, stat string) fstest.MapFS {
		return fstest.MapFS{
			"proc/meminfo": meminfo, "proc/self/cgroup": file("0::/a/b"),
			"sys/fs/cgroup/a/b/memory.max":          file("max"),
			"sys/fs/cgroup/a/memory.max":            file(limit),
			"sys/fs/cgroup/a/memory.current":        file(used),
			"sys/fs/cgroup/a/memory.stat":           file(stat),
			"sys/fs/cgroup/memory.max":              file("6442450944"),
			"sys/fs/cgroup/memory.current":          file("2147483648"),
			"sys/fs/cgroup/memory/memory.limit_in_": file("1"),
		}
	}
	v1 := fstest.MapFS{
		"proc/meminfo": meminfo, "proc/self/cgroup": file("12:cpu,cpuacct:/x\n4:memory:/docker/1"),
		"sys/fs/cgroup/memory/docker/1/memory.limit_in_bytes": file("536870912"),
		"sys/fs/cgroup/memory/docker/1/memory.usage_in_bytes": file("268435456"),
		"sys/fs/cgroup/memory/docker/1/memory.stat":           file("inactive_file 1\ntotal_inactive_file 134217728\ntotal_active_file 134213632"),
		"sys/fs/cgroup/memory/memory.limit_in_bytes":          file("9223372036854771712"),
	}
	const GiB, MiB = memory.GiB, memory.MiB
	base := Memory{RAM: 8 * GiB, Available: 4 * GiB, Swap: MiB}
	with := func(limit, used memory.Bytes) Memory {
		m := base
		m.Cgroup, m.CgroupUse = limit, used
		return m
	}
	for name, c := range map[string]struct {
		root fstest.MapFS
		want Memory
		room memory.Bytes
	}{
		"no group":                {fstest.MapFS{"proc/meminfo": meminfo}, base, 4 * GiB},
		"a parent's limit":        {v2("1073741824", "1048576", ""), with(GiB, MiB), 1023 * MiB},
		"the cache of files":      {v2("1073741824", "1073741824", "anon 1\ninactive_file 524288000\nactive_file 524288000"), with(GiB, 24*MiB), 1000 * MiB},
		"more cache than in use":  {v2("1073741824", "4096", "inactive_file 8192"), with(GiB, 0), GiB},
		"nothing left":            {v2("1073741824", "1073745920", ""), with(GiB, GiB+4*memory.KiB), 1},
		"a larger limit, fuller":  {v2("5368709120", "1048576", ""), with(6*GiB, 2*GiB), 4 * GiB},
		"no limit on the way":     {v2("max", "1048576", ""), with(6*GiB, 2*GiB), 4 * GiB},
		"version 1":               {v1, with(512*MiB, 4*memory.KiB), 512*MiB - 4*memory.KiB},
		"nothing known of memory": {fstest.MapFS{}, Memory{}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			got := memoryOf(c.root)
			if got != c.want || got.Room() != c.room {
				t.Errorf("%+v leaves %v\nwant %+v leaves %v", got, got.Room(), c.want, c.room)
			}
		})
	}
	if got := with(0, 0); (Memory{RAM: 1}).Room() != 1 || got.Room() != 4*GiB {
		t.Error("nothing available is not the same as not known")
	}
}

func TestLeast(t *testing.T) {
	for _, c := range []struct {
		all  []memory.Bytes
		want memory.Bytes
	}{{nil, 0}, {[]memory.Bytes{0, 0}, 0}, {[]memory.Bytes{0, 5, 3, 0}, 3}, {[]memory.Bytes{2, 5}, 2}} {
		if got := least(c.all...); got != c.want {
			t.Errorf("%v: %v, want %v", c.all, got, c.want)
		}
	}
	if got := LookAtMemory().Most(); got <= 0 || got > LookAtMemory().RAM {
		t.Errorf("a process here could hold %v of %v", got, LookAtMemory().RAM)
	}
}
