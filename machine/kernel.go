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

// groupKills returns the counter of the control group that this process is in. If that
// group has no counter, it returns that of the nearest group above it that has one, or 0.
func groupKills(root fs.FS) int64 {
	for h, group := range groups(root) {
		if text := read(root, path.Join(group, h.kills)); text != "" {
			return counter(text)
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
