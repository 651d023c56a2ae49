package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"headroom/configs"
	"headroom/cuda"
	"headroom/cuda/driver"
	"headroom/memory"
)

// machine is what doctor knows of the place where a run would happen. Amounts
// that could not be found out are 0, limits that are not set are 0 too.
type machine struct {
	Platform  string       `json:"platform"`
	CPUs      int          `json:"cpus"`
	RAM       memory.Bytes `json:"ram"`
	Available memory.Bytes `json:"ram_available"`
	Swap      memory.Bytes `json:"swap"`
	Cgroup    memory.Bytes `json:"cgroup_limit"`
	CgroupUse memory.Bytes `json:"cgroup_used"`
	GPUs      []string     `json:"gpus,omitempty"` // as the kernel's driver names them
	GPUsHid   string       `json:"gpus_hidden,omitempty"`
	CUDA      string       `json:"cuda,omitempty"` // the device that a run would take
	CUDAFree  memory.Bytes `json:"cuda_free"`
	CUDASize  memory.Bytes `json:"cuda_memory"`
	CUDAErr   string       `json:"cuda_error,omitempty"` // why there is none

	Driver   *cuda.Driver `json:"driver,omitempty"`
	Watched  []cuda.GPU   `json:"watched,omitempty"`     // those that CUDA may use, as NVML sees them
	WatchErr string       `json:"watch_error,omitempty"` // why NVML sees none

	Runs     string       `json:"runs"` // the folder that runs are kept in
	DiskFree memory.Bytes `json:"disk_free"`
	Inodes   int64        `json:"inodes_free"`
	WriteErr string       `json:"write_error,omitempty"`

	AddressLimit memory.Bytes `json:"address_limit"` // ulimit -v
	FileLimit    memory.Bytes `json:"file_limit"`    // ulimit -f
	CPULimit     int64        `json:"cpu_limit"`     // ulimit -t, seconds
	OpenFiles    int64        `json:"open_files"`    // ulimit -n

	Remote    bool      `json:"remote,omitempty"` // the terminal goes when the connection does
	OnBattery bool      `json:"on_battery,omitempty"`
	JobEnds   time.Time `json:"job_ends,omitzero"` // when the batch system takes the machine back
}

// lookAround finds out what it can. It changes nothing but for an empty file
// that it makes and removes where the runs are kept.
func lookAround(runs string, env func(string) (string, bool)) machine {
	root := os.DirFS("/")
	m := machine{Platform: runtime.GOOS + "/" + runtime.GOARCH, CPUs: runtime.GOMAXPROCS(0), Runs: runs}
	info := fields(read(root, "proc/meminfo"))
	m.RAM, m.Available, m.Swap = info["MemTotal"], info["MemAvailable"], info["SwapFree"]
	m.Cgroup, m.CgroupUse = cgroup(root)
	m.GPUs = gpus(root)
	if v, ok := env("CUDA_VISIBLE_DEVICES"); ok && (v == "" || v == "-1") {
		m.GPUsHid = "CUDA_VISIBLE_DEVICES=" + v
	}
	m.watchGPUs()
	m.lookAtCUDA()
	m.DiskFree, m.Inodes, m.WriteErr = disk(runs)
	m.AddressLimit = memory.Bytes(limit(unix.RLIMIT_AS))
	m.FileLimit = memory.Bytes(limit(unix.RLIMIT_FSIZE))
	m.CPULimit, m.OpenFiles = limit(unix.RLIMIT_CPU), limit(unix.RLIMIT_NOFILE)
	m.Remote = remote(env)
	m.OnBattery = onBattery(root)
	if v, _ := env("SLURM_JOB_END_TIME"); v != "" {
		if at, err := strconv.ParseInt(v, 10, 64); err == nil {
			m.JobEnds = time.Unix(at, 0)
		}
	}
	return m
}

func read(root fs.FS, path string) string {
	text, err := fs.ReadFile(root, path)
	if err != nil {
		return "" // not known
	}
	return strings.TrimSpace(string(text))
}

// fields reads lines such as "MemTotal:  24576000 kB".
func fields(text string) map[string]memory.Bytes {
	all := map[string]memory.Bytes{}
	for line := range strings.Lines(text) {
		key, rest, _ := strings.Cut(line, ":")
		number, unit, _ := strings.Cut(strings.TrimSpace(rest), " ")
		if v, err := strconv.ParseInt(number, 10, 64); err == nil && unit == "kB" {
			all[key] = memory.Bytes(v) * memory.KiB
		}
	}
	return all
}

// cgroup is the tightest memory limit of the groups that this process is in, in
// either version of the interface, and what that group uses.
func cgroup(root fs.FS) (limit, used memory.Bytes) {
	consider := func(dir, most, now string) {
		l, err := strconv.ParseInt(read(root, filepath.Join(dir, most)), 10, 64)
		if err != nil || l <= 0 || memory.Bytes(l) >= 1<<60 || (limit > 0 && memory.Bytes(l) >= limit) {
			return // "max", or a number that means it
		}
		u, _ := strconv.ParseInt(read(root, filepath.Join(dir, now)), 10, 64)
		limit, used = memory.Bytes(l), memory.Bytes(u)
	}
	for line := range strings.Lines(read(root, "proc/self/cgroup")) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 {
			continue
		}
		for path := filepath.Join("/", parts[2]); ; path = filepath.Dir(path) {
			switch {
			case parts[1] == "":
				consider(filepath.Join("sys/fs/cgroup", path), "memory.max", "memory.current")
			case strings.Contains(parts[1], "memory"):
				consider(filepath.Join("sys/fs/cgroup/memory", path), "memory.limit_in_bytes", "memory.usage_in_bytes")
			}
			if path == "/" {
				break
			}
		}
	}
	return limit, used
}

// lookAtCUDA opens the device that a run would, and closes it again.
func (m *machine) lookAtCUDA() {
	cfg := configs.Config{Device: configs.Device{Kind: "cuda"}}
	dev, err := cfg.OpenDevice(nil)
	var missing *driver.Unavailable
	if errors.As(err, &missing) {
		err = missing // what was asked for is known
	}
	if err != nil {
		m.CUDAErr = err.Error()
		return
	}
	s := dev.Stats()
	m.CUDA, m.CUDAFree, m.CUDASize = dev.Name(), s.Free, s.Capacity
	if err := dev.Close(); err != nil {
		m.CUDAErr = err.Error()
	}
}

// gpus are the devices that the kernel's driver has claimed, whether or not this
// build can use them.
func gpus(root fs.FS) []string {
	var names []string
	cards, _ := fs.Glob(root, "proc/driver/nvidia/gpus/*/information")
	for _, card := range cards {
		for line := range strings.Lines(read(root, card)) {
			if model, ok := strings.CutPrefix(line, "Model:"); ok {
				names = append(names, strings.TrimSpace(model))
			}
		}
	}
	return names
}

// disk is the room where dir is or would be, and why nothing can be written
// there, if so.
func disk(dir string) (free memory.Bytes, inodes int64, failure string) {
	at := dir
	for {
		if info, err := os.Stat(at); err == nil && info.IsDir() || at == filepath.Dir(at) {
			break
		}
		at = filepath.Dir(at)
	}
	var s unix.Statfs_t
	if err := unix.Statfs(at, &s); err == nil {
		free, inodes = memory.Bytes(s.Bavail)*memory.Bytes(s.Bsize), int64(s.Ffree)
	}
	f, err := os.CreateTemp(at, ".headroom-doctor-*")
	if err != nil {
		return free, inodes, err.Error()
	}
	_ = f.Close()
	if err := os.Remove(f.Name()); err != nil {
		return free, inodes, err.Error()
	}
	return free, inodes, ""
}

func limit(which int) int64 {
	var l unix.Rlimit
	if err := unix.Getrlimit(which, &l); err != nil || l.Cur >= 1<<62 {
		return 0
	}
	return int64(l.Cur)
}

// remote tells whether this is a terminal over ssh that no multiplexer keeps.
func remote(env func(string) (string, bool)) bool {
	has := func(name string) bool { v, _ := env(name); return v != "" }
	return has("SSH_CONNECTION") && !has("TMUX") && !has("STY") && term.IsTerminal(int(os.Stdin.Fd()))
}

func onBattery(root fs.FS) bool {
	mains, _ := fs.Glob(root, "sys/class/power_supply/*/online")
	for _, m := range mains {
		if read(root, filepath.Join(filepath.Dir(m), "type")) == "Mains" {
			return read(root, m) == "0"
		}
	}
	return false
}
