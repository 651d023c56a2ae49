package machine

import (
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"
)

// Kills counts the processes that the kernel has killed for lack of memory. The
// counters only rise, so what happened in between is the difference of two
// readings. A counter that the system does not keep stays 0.
type Kills struct {
	Group  int64 `json:"group"`  // in the control group of this process and, in version 2, in those below it
	System int64 `json:"system"` // on the machine since it was booted
}

// CountKills reads the counters as they are now, in a fraction of a millisecond.
// A process started from this one is in the same control group unless it is
// moved.
func CountKills() Kills { return killsOf(os.DirFS("/")) }

// Since is what the counters rose by since an earlier reading, never negative: a
// group that was created again begins at 0.
func (k Kills) Since(before Kills) Kills {
	return Kills{Group: max(0, k.Group-before.Group), System: max(0, k.System-before.System)}
}

func killsOf(root fs.FS) Kills {
	return Kills{Group: groupKills(root), System: counter(read(root, "proc/vmstat"))}
}

// groupKills is the counter of the group that this process is in, in either version
// of the interface, or of the nearest above it that has one. In a container the
// path may be the host's; then the top is found, which is the container's.
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

// counter is the number after "oom_kill", 0 if there is none: kernels before 4.13
// do not count.
func counter(text string) int64 {
	for line := range strings.Lines(text) {
		if name, value, _ := strings.Cut(strings.TrimSpace(line), " "); name == "oom_kill" {
			n, _ := strconv.ParseInt(value, 10, 64)
			return n
		}
	}
	return 0
}
