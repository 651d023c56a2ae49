package machine

import (
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"
)

// Kills counts the processes that the kernel has killed for lack of memory. The
// counters only rise, so the difference between two readings is the number of
// processes killed in between. A counter that the system does not keep stays 0.
type Kills struct {
	Group  int64 `json:"group"`  // in the control group of this process and, with cgroup v2, in the groups below it
	System int64 `json:"system"` // on the machine since it was booted
}

// CountKills reads the current counters, which takes a fraction of a millisecond.
// The group's counter also covers the processes that this process starts, unless
// they are moved to another control group.
func CountKills() Kills { return killsOf(os.DirFS("/")) }

// Since returns how far the counters have risen since an earlier reading, before. The
// result is never negative, even if the control group was created again in the meantime
// and its counter started again at 0.
func (k Kills) Since(before Kills) Kills {
	return Kills{Group: max(0, k.Group-before.Group), System: max(0, k.System-before.System)}
}

func killsOf(root fs.FS) Kills {
	return Kills{Group: groupKills(root), System: counter(read(root, "proc/vmstat"))}
}

// groupKills returns the counter of the control group that this process is in, with
// cgroup v1 or v2. If that group has no counter, it returns that of the nearest group
// above it that has one, or 0. In a container, /proc/self/cgroup may show the path on the
// host. The search then ends at the root of the hierarchy, which is the container's group.
func groupKills(root fs.FS) int64 {
	for line := range strings.Lines(read(root, "proc/self/cgroup")) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 {
			continue
		}
		mount, name := version2.mount, "memory.events"
		if parts[1] != "" {
			mount, name = version1.mount, "memory.oom_control"
			if !strings.Contains(parts[1], "memory") {
				continue
			}
		}
		for group := path.Join("/", parts[2]); ; group = path.Dir(group) {
			if text := read(root, path.Join(mount, group, name)); text != "" {
				return counter(text)
			}
			if group == "/" {
				break
			}
		}
	}
	return 0
}

// counter returns the number after "oom_kill" in text, or 0 if there is none. Kernels
// before 4.13 do not keep this counter.
func counter(text string) int64 {
	for line := range strings.Lines(text) {
		if name, value, _ := strings.Cut(strings.TrimSpace(line), " "); name == "oom_kill" {
			n, _ := strconv.ParseInt(value, 10, 64)
			return n
		}
	}
	return 0
}
