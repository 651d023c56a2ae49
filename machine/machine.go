package machine

import (
	"io/fs"
	"os"
	"path"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"headroom/memory"
)

// Machine describes what this machine offers a program. An amount that is not known is 0,
// and so is a limit that is not set.
type Machine struct {
	Platform string `json:"platform"`
	CPUs     int    `json:"cpus"`
	Memory
	GPUs    []string `json:"gpus,omitempty"`        // as the kernel's driver names them
	GPUsHid string   `json:"gpus_hidden,omitempty"` // the setting that hides them from CUDA; "" if none does

	Runs     string       `json:"runs"` // the folder that runs are kept in
	DiskFree memory.Bytes `json:"disk_free"`
	Inodes   int64        `json:"inodes_free"`
	WriteErr string       `json:"write_error,omitempty"` // why files cannot be written in Runs; "" if they can

	AddressLimit memory.Bytes `json:"address_limit"` // ulimit -v
	DataLimit    memory.Bytes `json:"data_limit"`    // ulimit -d
	FileLimit    memory.Bytes `json:"file_limit"`    // ulimit -f
	CPULimit     int64        `json:"cpu_limit"`     // ulimit -t, seconds
	OpenFiles    int64        `json:"open_files"`    // ulimit -n

	Remote    bool      `json:"remote,omitempty"` // the terminal closes when its ssh connection ends
	OnBattery bool      `json:"on_battery,omitempty"`
	JobEnds   time.Time `json:"job_ends,omitzero"` // when the batch system takes the machine back
}

// Environment looks up an environment variable by name, as [os.LookupEnv] does.
type Environment func(name string) (string, bool)

// Look describes this machine as far as the system reports it. runs is the folder that
// runs are kept in; it need not exist yet.
func Look(runs string, env Environment) Machine {
	root := os.DirFS("/")
	m := Machine{
		Platform: runtime.GOOS + "/" + runtime.GOARCH, CPUs: runtime.GOMAXPROCS(0), Memory: memoryOf(root),
		GPUs: gpus(root), GPUsHid: hidden(env), Runs: runs,
		AddressLimit: memory.Bytes(limit(unix.RLIMIT_AS)), DataLimit: memory.Bytes(limit(unix.RLIMIT_DATA)), FileLimit: memory.Bytes(limit(unix.RLIMIT_FSIZE)),
		CPULimit: limit(unix.RLIMIT_CPU), OpenFiles: limit(unix.RLIMIT_NOFILE),
		Remote:    remote(env, term.IsTerminal(int(os.Stdin.Fd()))),
		OnBattery: onBattery(root), JobEnds: jobEnds(env),
	}
	m.DiskFree, m.Inodes, m.WriteErr = disk(runs)
	return m
}

func read(root fs.FS, name string) string {
	text, err := fs.ReadFile(root, name)
	if err != nil {
		return "" // not known
	}
	return strings.TrimSpace(string(text))
}

// gpus returns the model names of the GPUs that NVIDIA's kernel driver has claimed,
// whether or not this process can use them.
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

// hidden returns the setting that hides all GPUs from CUDA, as NAME=VALUE, or "" if there
// is none.
func hidden(env Environment) string {
	if v, ok := env("CUDA_VISIBLE_DEVICES"); ok && (v == "" || v == "-1") {
		return "CUDA_VISIBLE_DEVICES=" + v
	}
	return ""
}

func limit(which int) int64 {
	var l unix.Rlimit
	if err := unix.Getrlimit(which, &l); err != nil || l.Cur >= 1<<62 {
		return 0
	}
	return int64(l.Cur)
}

// remote reports whether the terminal closes when its ssh connection ends. That is so if
// the terminal is reached over ssh, and neither tmux nor screen keeps it open. terminal
// says whether this process has a terminal at all.
func remote(env Environment, terminal bool) bool {
	has := func(name string) bool { v, _ := env(name); return v != "" }
	return terminal && has("SSH_CONNECTION") && !has("TMUX") && !has("STY")
}

func onBattery(root fs.FS) bool {
	mains, _ := fs.Glob(root, "sys/class/power_supply/*/online")
	for _, m := range mains {
		if read(root, path.Join(path.Dir(m), "type")) == "Mains" {
			return read(root, m) == "0"
		}
	}
	return false
}

// jobEnds returns the time at which Slurm ends the job that this process belongs to. It
// returns the zero time if there is no such job, or if the job has no time limit.
func jobEnds(env Environment) time.Time {
	v, _ := env("SLURM_JOB_END_TIME")
	at, err := strconv.ParseInt(v, 10, 64)
	if err != nil {
		return time.Time{}
	}
	return time.Unix(at, 0)
}
