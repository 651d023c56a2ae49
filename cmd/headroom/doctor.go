package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"headroom/cmd/headroom/ui"
	"headroom/configs"
	"headroom/job"
	"headroom/machine"
	"headroom/memory"
)

func doctorCommand(u *ui.UI) *cli.Command {
	command := &cli.Command{
		Name:      "doctor",
		Usage:     "show what this machine has, and what would go wrong tonight",
		ArgsUsage: "[CONFIG]",
		Description: `With CONFIG, a file or the name of a preset, its data and device are checked
too. Each check is ok, warn or fail, and says what to do next. Nothing is
trained and nothing is changed. The status is 1 if a check fails.`,
		Flags:  []cli.Flag{jsonFlag("print one JSON object: the machine and the checks"), setFlag(), unsetFlag()},
		Action: func(c *cli.Context) error { return doctorAction(u, c) },
	}
	command.BashComplete = completeFlags(command, configs.Presets)
	return command
}

func doctorAction(u *ui.UI, c *cli.Context) error {
	folder := configs.RunsDir()
	var cfg *configs.Config
	if c.Args().Present() {
		var err error
		if cfg, err = loadConfig(c); err != nil {
			return err
		}
		folder = cfg.Output.Dir
	}
	runs, err := filepath.Abs(folder)
	if err != nil {
		return fmt.Errorf("doctor: %w", err)
	}
	m := lookAround(runs)
	checks := examine(m, u.Now())
	if cfg != nil {
		checks = append(checks, checkJob(cfg)...)
		checks = append(checks, checkDevice(cfg, m))
	}
	if c.Bool("json") {
		err = u.AnswerJSON(map[string]any{"version": readBuild(), "machine": m, "checks": checks})
	} else {
		err = u.Answer(checkTable(checks))
	}
	return errors.Join(err, failing(checks))
}

// state is the result of a check.
type state string

const (
	ok   state = "ok"
	warn state = "warn"
	fail state = "fail"
)

// check is one thing that doctor examined, and what it found.
type check struct {
	Name  string `json:"name"`
	State state  `json:"state"`
	Found string `json:"found"`
	Next  string `json:"next,omitempty"` // what to do about it
}

// These are the limits below which a check warns.
const (
	leastDisk   = 64 * memory.MiB // for journals, logs and reports; checkpoints have a check of their own
	leastRAM    = memory.GiB
	leastInodes = 1000
	leastFiles  = 256
	night       = 12 * time.Hour
)

// examine returns the checks of m, judged at the time now. It is a pure function.
func examine(m site, now time.Time) []check {
	checks := []check{
		{Name: "build", State: ok, Found: readBuild().String()},
		{Name: "processors", State: ok, Found: fmt.Sprintf("%d for this process, %s", m.CPUs, m.Platform)},
		checkRAM(m), checkGPUs(m),
	}
	checks = append(checks, checkWatched(m)...)
	checks = append(checks, checkFolder(m), checkDisk(m))
	checks = append(checks, checkLimits(m)...)
	return append(checks, checkTonight(m, now)...)
}

func checkRAM(m site) check {
	c := check{Name: "memory", State: ok}
	room := m.Room()
	switch {
	case m.RAM == 0:
		c.Found = "unknown: the system does not say"
		return c
	case room < m.Available:
		c.Found = fmt.Sprintf("%v available of a limit of %v set by the control group (%v in the machine)", room, m.Cgroup, m.RAM)
	default:
		c.Found = fmt.Sprintf("%v available of %v", room, m.RAM)
	}
	if m.Swap > 0 {
		c.Found += fmt.Sprintf(", %v of swap", m.Swap)
	}
	if room < leastRAM {
		c.State, c.Next = warn, fmt.Sprintf("free up memory, or raise the limit if there is one: the embedded device needs at least %v", leastRAM)
	}
	return c
}

func checkGPUs(m site) check {
	const name = "devices"
	there := strings.Join(m.GPUs, ", ")
	switch {
	case m.CUDA != "" && m.CUDAErr != "":
		return check{name, fail, m.CUDA + ": " + m.CUDAErr, "see the driver's log (dmesg), and nvidia-smi"}
	case m.CUDA != "":
		return check{Name: name, State: ok, Found: fmt.Sprintf("%s, %v free of %v", m.CUDA, m.CUDAFree, m.CUDASize)}
	case m.GPUsHid != "":
		return check{Name: name, State: ok, Found: fmt.Sprintf("the embedded host device; %s hides the GPUs", m.GPUsHid)}
	case there != "":
		return check{name, warn, there + ", not usable: " + m.CUDAErr, "without a usable GPU, runs use the embedded host device, which computes on the processors"}
	}
	return check{Name: name, State: ok, Found: fmt.Sprintf("the embedded host device; no GPU: %s", m.CUDAErr)}
}

func checkFolder(m site) check {
	if m.WriteErr != "" {
		return check{"runs folder", fail, m.WriteErr, fmt.Sprintf("make %s writable, or set HEADROOM_RUNS_DIR or output.dir to another folder", m.Runs)}
	}
	return check{Name: "runs folder", State: ok, Found: m.Runs}
}

func checkDisk(m site) check {
	c := check{Name: "disk", State: ok, Found: fmt.Sprintf("%v free for runs", m.DiskFree)}
	switch {
	case m.DiskFree == 0 && m.Inodes == 0 && m.WriteErr == "":
		c.Found = "unknown: the file system does not say"
	case m.DiskFree < leastDisk:
		c.State, c.Next = warn, "make room, or set HEADROOM_RUNS_DIR or output.dir to a folder on another disk: on a full disk no part of a run can be kept"
	case m.Inodes > 0 && m.Inodes < leastInodes:
		c.State, c.Found, c.Next = warn, fmt.Sprintf("only %d more files can be created", m.Inodes), "remove small files"
	}
	return c
}

func checkLimits(m site) []check {
	var checks []check
	add := func(bad bool, found, next string) {
		if bad {
			checks = append(checks, check{"limits", warn, found, next})
		}
	}
	add(m.AddressLimit > 0, fmt.Sprintf("address space is limited to %v (ulimit -v)", m.AddressLimit), "ulimit -v unlimited")
	add(m.DataLimit > 0, fmt.Sprintf("the memory of each process is limited to %v (ulimit -d)", m.DataLimit), "ulimit -d unlimited")
	add(m.FileLimit > 0, fmt.Sprintf("file size is limited to %v (ulimit -f): a larger checkpoint would fail", m.FileLimit), "ulimit -f unlimited")
	add(m.CPULimit > 0, fmt.Sprintf("the system ends the process after %v of processor time (ulimit -t)", time.Duration(m.CPULimit)*time.Second), "ulimit -t unlimited")
	add(m.OpenFiles > 0 && m.OpenFiles < leastFiles, fmt.Sprintf("only %d open files are allowed (ulimit -n)", m.OpenFiles), fmt.Sprintf("ulimit -n %d", leastFiles))
	if checks == nil {
		return []check{{Name: "limits", State: ok, Found: "none that would end a run"}}
	}
	return checks
}

func checkTonight(m site, now time.Time) []check {
	var checks []check
	if m.Remote {
		checks = append(checks, check{"terminal", warn, "over ssh: if the connection drops, the run saves a checkpoint and stops", "start it in tmux or screen, or with nohup"})
	}
	if m.OnBattery {
		checks = append(checks, check{"power", warn, "on battery", "plug it in, and make sure that it does not go to sleep"})
	}
	if left := m.JobEnds.Sub(now); !m.JobEnds.IsZero() && left < night {
		checks = append(checks, check{"time", warn, fmt.Sprintf("the batch system takes the machine back in %v", max(0, left).Round(time.Minute)),
			"ask for a signal before the end (--signal=B:TERM@120) and for requeueing: exit status 75 means that the same command, run again, continues the run"})
	}
	return checks
}

// checkJob opens the data as a run would, and checks whether the disk has room for the
// checkpoints of the run.
func checkJob(cfg *configs.Config) []check {
	j, err := job.Open(cfg)
	if err != nil {
		return []check{{"data", fail, err.Error(), "see the data section of the configuration"}}
	}
	checks := []check{{Name: "data", State: ok, Found: fmt.Sprintf("%d samples, %d steps of %d samples each", j.Set.Len(), j.Config.Train.Steps, j.Config.Batch.Effective)}}
	if c, known := diskOf(j); known {
		checks = append(checks, c)
	}
	return checks
}

// diskOf checks whether the disk has room for the checkpoints of a job. known is false if
// the file system does not report its free space.
func diskOf(j *job.Job) (c check, known bool) {
	free, known := machine.DiskFree(j.Config.RunDir())
	held, n := memory.Bytes(0), 0
	states, _ := filepath.Glob(filepath.Join(j.Config.RunDir(), "checkpoints", "step-*", "state.safetensors"))
	for _, path := range states {
		if info, err := os.Stat(path); err == nil {
			held += memory.Bytes(info.Size())
			n++
		}
	}
	return checkCheckpoints(j.CheckpointSize(), j.Config.Train.Keep, free, held, n), known
}

// checkCheckpoints judges whether the disk has room for the keep checkpoints that a run
// keeps and for one more that is being written. each is the size of one checkpoint, free is
// the free disk space, and held is the size of the n checkpoints that are already there. It
// is a pure function.
func checkCheckpoints(each memory.Bytes, keep int, free, held memory.Bytes, n int) check {
	need := memory.Bytes(keep+1) * each
	c := check{Name: "checkpoints", State: ok, Found: fmt.Sprintf("%v each; with train.keep %d they take up to %v, and %v is free", each, keep, need, free)}
	if n > 0 {
		c.Found += fmt.Sprintf("; already there: %s", ui.Plural(n, "checkpoint"))
	}
	switch {
	case free < each && n < 2:
		c.State, c.Next = fail, fmt.Sprintf("make room, or set output.dir to another disk: not even one checkpoint of %v can be written", each)
	case free+held < need:
		c.State, c.Next = warn, "make room, or lower train.keep: when the disk is full, the oldest checkpoints are removed to make room for the newest"
	}
	return c
}

// checkDevice opens the device as a run would. If that is the embedded host device, it
// also checks whether the machine has as much memory left as the device may take.
func checkDevice(cfg *configs.Config, m site) check {
	dev, err := job.OpenDevice(cfg, nil)
	if err != nil {
		return check{"device", fail, err.Error(), "set device.kind to an available device"}
	}
	capacity := dev.Stats().Capacity
	c := check{Name: "device", State: ok, Found: fmt.Sprintf("%s, %v", dev.Name(), capacity)}
	if err := dev.Close(); err != nil {
		return check{"device", fail, err.Error(), "see what is using the device"}
	}
	if dev.Name() == "host" && job.HostFits(cfg.Device, m.Room()) != nil {
		c.State, c.Next = fail, fmt.Sprintf("set device.capacity below the %v that this machine has left", m.Room())
	}
	return c
}

func checkTable(checks []check) string {
	wide := 0
	for _, c := range checks {
		wide = max(wide, len(c.Name))
	}
	var b strings.Builder
	for _, c := range checks {
		fmt.Fprintf(&b, "%-4s  %-*s  %s\n", c.State, wide, c.Name, c.Found)
		if c.Next != "" {
			fmt.Fprintf(&b, "%*s  → %s\n", wide+6, "", c.Next)
		}
	}
	return strings.TrimSuffix(b.String(), "\n")
}

func failing(checks []check) error {
	var names []string
	for _, c := range checks {
		if c.State == fail {
			names = append(names, c.Name)
		}
	}
	if names == nil {
		return nil
	}
	return fmt.Errorf("doctor: these checks failed: %s", strings.Join(names, ", "))
}
