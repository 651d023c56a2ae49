package machine

import (
	"runtime"
	"testing"
	"testing/fstest"
)

func TestKills(t *testing.T) {
	vmstat := file("pgfault 12\noom_kill 7\noom_kill_other 9")
	const events = "low 0\nhigh 3\nmax 5\noom 4\noom_kill 2\noom_group_kill 1"
	for name, c := range map[string]struct {
		root fstest.MapFS
		want Kills
	}{
		"nothing is known": {fstest.MapFS{}, Kills{}},
		"version 2": {fstest.MapFS{
			"proc/vmstat": vmstat, "proc/self/cgroup": file("0::/user/job"),
			"sys/fs/cgroup/user/job/memory.events": file(events),
			"sys/fs/cgroup/user/memory.events":     file("oom_kill 50"),
		}, Kills{Group: 2, System: 7}},
		"a group without the controller": {fstest.MapFS{
			"proc/self/cgroup":                 file("0::/user/job"),
			"sys/fs/cgroup/user/memory.events": file("oom_kill 50"),
		}, Kills{Group: 50}},
		"a container whose path is the host's": {fstest.MapFS{
			"proc/self/cgroup": file("0::/docker/1"), "sys/fs/cgroup/memory.events": file(events),
		}, Kills{Group: 2}},
		"version 1": {fstest.MapFS{
			"proc/vmstat": vmstat, "proc/self/cgroup": file("5:cpu,cpuacct:/x\n4:memory:/docker/1\n0::/"),
			"sys/fs/cgroup/memory/docker/1/memory.oom_control": file("oom_kill_disable 0\nunder_oom 0\noom_kill 3"),
			"sys/fs/cgroup/memory/x/memory.oom_control":        file("oom_kill 8"),
		}, Kills{Group: 3, System: 7}},
		"an old kernel": {fstest.MapFS{
			"proc/vmstat": file("pgfault 12"), "proc/self/cgroup": file("4:memory:/"),
			"sys/fs/cgroup/memory/memory.oom_control": file("oom_kill_disable 0\nunder_oom 0"),
		}, Kills{}},
		"no number": {fstest.MapFS{"proc/vmstat": file("oom_kill many")}, Kills{}},
	} {
		if got := killsOf(c.root); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

func TestKillsSince(t *testing.T) {
	before := Kills{Group: 5, System: 7}
	if got := (Kills{Group: 6, System: 9}).Since(before); got != (Kills{Group: 1, System: 2}) {
		t.Errorf("%+v", got)
	}
	if got := (Kills{System: 9}).Since(before); got != (Kills{System: 2}) {
		t.Errorf("of a group made anew: %+v", got)
	}
}

// TestCountKills reads the real files of this system, and checks that the counters
// do not fall from one reading to the next.
func TestCountKills(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("there is no /proc")
	}
	before := CountKills()
	if now := CountKills(); now.System < before.System || now.Group < before.Group {
		t.Errorf("%+v after %+v", now, before)
	}
}
