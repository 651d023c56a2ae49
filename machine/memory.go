package machine

import (
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"headroom/memory"
)

// Memory is the memory of the machine, and of the control group that leaves this
// process the least. Amounts that are not known and limits that are not set are 0.
type Memory struct {
	RAM       memory.Bytes `json:"ram"`
	Available memory.Bytes `json:"ram_available"` // without swap
	Swap      memory.Bytes `json:"swap"`          // free
	Cgroup    memory.Bytes `json:"cgroup_limit"`
	CgroupUse memory.Bytes `json:"cgroup_used"` // without the group's file cache
}

// LookAtMemory reads the system's figures as they are now. Where there is no
// /proc, nothing is known.
func LookAtMemory() Memory { return memoryOf(os.DirFS("/")) }

// Room is the memory that the system could still give, without swap: a process
// that asks for more is swapped out or killed. 0 means that it is not known;
// where nothing is left it is 1 byte.
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

// fields reads lines such as "MemTotal:  24576000 kB" and "active_file 4096";
// the latter is in bytes.
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

// hierarchy is where, and under what names, a version of the interface keeps a
// group's figures.
type hierarchy struct{ mount, limit, used, inactive, active string }

var (
	version1 = hierarchy{"sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file", "total_active_file"}
	version2 = hierarchy{"sys/fs/cgroup", "memory.max", "memory.current", "inactive_file", "active_file"}
)

// cgroup is the limit and use of the group that leaves the least, of all that
// this process is in, in either version of the interface: 0 if none has a limit.
// In a container the path may be the host's; then only the top is found, which
// is the container's.
func cgroup(root fs.FS) (limit, used memory.Bytes) {
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
			l, u := h.read(root, path.Join(h.mount, group))
			if l > 0 && (limit == 0 || l-u < limit-used) {
				limit, used = l, u
			}
			if group == "/" {
				break
			}
		}
	}
	return limit, used
}

// read is the limit and use of one group, 0 without a limit. The system counts the
// file cache as used, but drops it before it kills a process, so it is left out: a
// container that has read a large file still has memory left.
func (h hierarchy) read(root fs.FS, group string) (limit, used memory.Bytes) {
	l, err := strconv.ParseInt(read(root, path.Join(group, h.limit)), 10, 64)
	if err != nil || l <= 0 || l >= 1<<60 {
		return 0, 0 // "max", or a number that means "max"
	}
	u, _ := strconv.ParseInt(read(root, path.Join(group, h.used)), 10, 64)
	stat := fields(read(root, path.Join(group, "memory.stat")))
	return memory.Bytes(l), max(0, memory.Bytes(u)-stat[h.inactive]-stat[h.active])
}

// Most is the most host memory that a process started here could hold: all of the
// machine's, its control group's limit, or its own limits of data and address space,
// whichever is least; 0 if nothing is known.
func (m Memory) Most() memory.Bytes { return least(m.RAM, m.Cgroup, Ulimit()) }

// Ulimit is the most memory that a process started here may allocate, by ulimit -d and
// ulimit -v, whichever is less; 0 if neither is set.
func Ulimit() memory.Bytes {
	return least(memory.Bytes(limit(unix.RLIMIT_DATA)), memory.Bytes(limit(unix.RLIMIT_AS)))
}

// least is the smallest of the amounts that are known.
func least(all ...memory.Bytes) (n memory.Bytes) {
	for _, b := range all {
		if b > 0 && (n == 0 || b < n) {
			n = b
		}
	}
	return n
}
