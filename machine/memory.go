package machine

import (
	"io/fs"
	"iter"
	"os"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"headroom/memory"
)

// Memory describes the memory of the machine and of one control group: of all the groups
// that this process is in, the one with the least memory left. An amount that is not known
// is 0, and so is a limit that is not set.
type Memory struct {
	RAM       memory.Bytes `json:"ram"`
	Available memory.Bytes `json:"ram_available"` // without swap
	Swap      memory.Bytes `json:"swap"`          // free swap
	Cgroup    memory.Bytes `json:"cgroup_limit"`
	CgroupUse memory.Bytes `json:"cgroup_used"` // without the group's file cache
}

// LookAtMemory reads the system's current figures. On a system without /proc, all of them
// are 0.
func LookAtMemory() Memory { return memoryOf(os.DirFS("/")) }

// Room returns how much memory the system could still give to a process without using
// swap. A process that asks for more is swapped out or killed. The result is 0 if it is not
// known, and 1 byte if no memory is left.
func (m Memory) Room() memory.Bytes {
	switch {
	case m.RAM == 0:
		return 0
	case m.Cgroup > 0:
		return max(1, min(m.Available, m.Cgroup-m.CgroupUse))
	}
	return max(1, m.Available)
}

func memoryOf(root fs.FS) Memory {
	info := fields(read(root, "proc/meminfo"))
	m := Memory{RAM: info["MemTotal"], Available: info["MemAvailable"], Swap: info["SwapFree"]}
	m.Cgroup, m.CgroupUse = cgroup(root)
	return m
}

// fields parses lines such as "MemTotal:  24576000 kB" and "active_file 4096", and returns
// the amounts by name. An amount without a unit is in bytes.
func fields(text string) map[string]memory.Bytes {
	all := map[string]memory.Bytes{}
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		if len(words) < 2 {
			continue
		}
		v, err := strconv.ParseInt(words[1], 10, 64)
		if err != nil {
			continue
		}
		unit := memory.Bytes(1)
		if len(words) > 2 && words[2] == "kB" {
			unit = memory.KiB
		}
		all[strings.TrimSuffix(words[0], ":")] = memory.Bytes(v) * unit
	}
	return all
}

// hierarchy says where a version of the cgroup interface is mounted, and under which names
// it keeps the figures of a group.
type hierarchy struct{ mount, limit, used, inactive, active, kills string }

var (
	version1 = hierarchy{"sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file", "total_active_file", "memory.oom_control"}
	version2 = hierarchy{"sys/fs/cgroup", "memory.max", "memory.current", "inactive_file", "active_file", "memory.events"}
)

// groups yields the folders of the control groups that this process is in, each after those
// below it, with cgroup v1 or v2. In a container, /proc/self/cgroup may show the path on the
// host. Then only the root of the hierarchy is found, which is the container's group.
func groups(root fs.FS) iter.Seq2[hierarchy, string] {
	return func(yield func(hierarchy, string) bool) {
		for line := range strings.Lines(read(root, "proc/self/cgroup")) {
			parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
			if len(parts) != 3 {
				continue
			}
			h := version2
			if parts[1] != "" {
				h = version1
				if !strings.Contains(parts[1], "memory") {
					continue
				}
			}
			for group := path.Join("/", parts[2]); ; group = path.Dir(group) {
				if !yield(h, path.Join(h.mount, group)) {
					return
				}
				if group == "/" {
					break
				}
			}
		}
	}
}

// cgroup returns the limit and the usage of the control group of this process that has the
// least memory left. Both are 0 if none has a limit.
func cgroup(root fs.FS) (limit, used memory.Bytes) {
	for h, group := range groups(root) {
		if l, u := h.read(root, group); l > 0 && (limit == 0 || l-u < limit-used) {
			limit, used = l, u
		}
	}
	return limit, used
}

// read returns the limit and the usage of one group, or 0 and 0 if the group has no
// limit. The system counts the file cache as used, but drops the cache before it kills a
// process. The usage that read returns therefore excludes the cache: a container that has
// read a large file still has memory left.
func (h hierarchy) read(root fs.FS, group string) (limit, used memory.Bytes) {
	l, err := strconv.ParseInt(read(root, path.Join(group, h.limit)), 10, 64)
	if err != nil || l <= 0 || l >= 1<<60 {
		return 0, 0 // "max", or a number that means "max"
	}
	u, _ := strconv.ParseInt(read(root, path.Join(group, h.used)), 10, 64)
	stat := fields(read(root, path.Join(group, "memory.stat")))
	return memory.Bytes(l), max(0, memory.Bytes(u)-stat[h.inactive]-stat[h.active])
}

// Most returns the most host memory that a process started here could hold. That is the
// least of the machine's memory, the control group's limit and [Ulimit]. The result is 0
// if none of the three is known.
func (m Memory) Most() memory.Bytes { return least(m.RAM, m.Cgroup, Ulimit()) }

// Ulimit returns the most memory that a process started here may allocate: the lower of
// the limits that ulimit -d and ulimit -v set, or 0 if neither is set.
func Ulimit() memory.Bytes {
	return least(memory.Bytes(limit(unix.RLIMIT_DATA)), memory.Bytes(limit(unix.RLIMIT_AS)))
}

// least returns the smallest of the amounts that are not 0, or 0 if all of them are.
func least(all ...memory.Bytes) (n memory.Bytes) {
	for _, b := range all {
		if b > 0 && (n == 0 || b < n) {
			n = b
		}
	}
	return n
}
