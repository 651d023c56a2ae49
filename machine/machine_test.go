package machine

import (
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"
)

func file(s string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(s + "\n")} }

// vars returns an environment that holds the given variables, each as "NAME=value".
func vars(all ...string) Environment {
	return func(name string) (string, bool) {
		for _, v := range all {
			if value, ok := strings.CutPrefix(v, name+"="); ok {
				return value, true
			}
		}
		return "", false
	}
}

// TestLook checks that Look describes this machine and leaves no file behind.
func TestLook(t *testing.T) {
	dir := t.TempDir()
	m := Look(filepath.Join(dir, "runs"), vars("CUDA_VISIBLE_DEVICES=", "SLURM_JOB_END_TIME=1000000000"))
	if m.CPUs < 1 || m.Platform == "" || m.DiskFree <= 0 || m.WriteErr != "" || m.GPUsHid != "CUDA_VISIBLE_DEVICES=" ||
		!m.JobEnds.Equal(time.Unix(1e9, 0)) || m.Remote {
		t.Errorf("%+v", m)
	}
	if runtime.GOOS == "linux" && (m.RAM <= 0 || m.Available > m.RAM || m.Room() <= 0 || m.Room() > m.Available) {
		t.Errorf("%+v with %v of room", m.Memory, m.Room())
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	text, err := json.Marshal(m)
	if err != nil || !strings.Contains(string(text), `"ram":`) {
		t.Errorf("%s, %v", text, err)
	}
}

func TestDiskThatCannotBeWritten(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("there is no /proc, where even root makes no file")
	}
	if _, _, failure := disk("/proc/runs/tonight"); failure == "" {
		t.Error("a file was made in /proc")
	}
}

func TestGPUNames(t *testing.T) {
	root := fstest.MapFS{
		"proc/driver/nvidia/gpus/0000:01:00.0/information": file("Model: \t\t NVIDIA H200\nIRQ: 5"),
		"proc/driver/nvidia/gpus/0000:02:00.0/information": file("IRQ: 6\nModel: \t\t NVIDIA A100"),
	}
	if got, want := gpus(root), []string{"NVIDIA H200", "NVIDIA A100"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestHidden(t *testing.T) {
	for v, want := range map[string]string{"CUDA_VISIBLE_DEVICES=-1": "CUDA_VISIBLE_DEVICES=-1", "CUDA_VISIBLE_DEVICES=0": "", "OTHER=": ""} {
		if got := hidden(vars(v)); got != want {
			t.Errorf("%s: %q, want %q", v, got, want)
		}
	}
}

func TestRemote(t *testing.T) {
	const ssh = "SSH_CONNECTION=10.0.0.1 22"
	for _, c := range []struct {
		env            Environment
		terminal, want bool
	}{
		{vars(ssh), true, true}, {vars(ssh), false, false}, {vars(), true, false},
		{vars(ssh, "TMUX=/tmp/t"), true, false}, {vars(ssh, "STY=1"), true, false}, {vars(ssh, "STY="), true, true},
	} {
		if got := remote(c.env, c.terminal); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}

func TestBattery(t *testing.T) {
	at := func(kind, online string) fstest.MapFS {
		return fstest.MapFS{"sys/class/power_supply/AC/online": file(online), "sys/class/power_supply/AC/type": file(kind)}
	}
	for name, c := range map[string]struct {
		root fstest.MapFS
		want bool
	}{
		"plugged in": {at("Mains", "1"), false}, "on battery": {at("Mains", "0"), true},
		"a mouse": {at("Battery", "0"), false}, "a server": {fstest.MapFS{}, false},
	} {
		if got := onBattery(c.root); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestJobEnds(t *testing.T) {
	for v, want := range map[string]time.Time{"1000000000": time.Unix(1e9, 0), "": {}, "Unknown": {}} {
		if got := jobEnds(vars("SLURM_JOB_END_TIME=" + v)); !got.Equal(want) {
			t.Errorf("%q: %v", v, got)
		}
	}
}
