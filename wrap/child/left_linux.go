package child

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"headroom/machine"
	"headroom/runs"
)

// leave returns the processes as what a command left running. It also sees to it that those that
// are now children of this process are reaped, as their next parent would do.
func leave(all []machine.Process) []Left {
	var left []Left
	for _, p := range all {
		left = append(left, leftAs(p))
		if p.Parent == os.Getpid() {
			go func() {
				for {
					if _, err := syscall.Wait4(p.PID, nil, 0, nil); !errors.Is(err, syscall.EINTR) {
						return
					}
				}
			}()
		}
	}
	slices.SortFunc(left, func(a, b Left) int { return a.PID - b.PID })
	return left
}

func leftAs(p machine.Process) Left {
	return Left{PID: p.PID, Name: p.Name, parent: p.Parent, group: p.Group, start: p.Start}
}

// bootID returns the kernel's id of the machine's newest start, or "" if it has none.
func bootID() string {
	text, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(text))
}

// Identity identifies the child for other processes.
func (c *Child) Identity() runs.Process {
	p, _ := machine.LookAtProcess(c.Pid())
	return runs.Process{PID: c.Pid(), Group: p.Group, Start: p.Start, Boot: bootID(), Script: scriptAmong(words(c.Pid()))}
}

// words returns the command line of a process, or nil if it cannot be read.
func words(pid int) []string {
	text, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline")
	return strings.Split(strings.TrimSuffix(string(text), "\x00"), "\x00")
}

// scriptAmong returns the script among the words of a command line, or the module after -m, or "".
func scriptAmong(words []string) string {
	for i, word := range words {
		if strings.HasSuffix(word, ".py") || i > 0 && words[i-1] == "-m" {
			return word
		}
	}
	return ""
}

// runsScript reports whether a process has the script among the words of its command line.
func (l Left) runsScript(script string) bool {
	return script != "" && slices.Contains(words(l.PID), script)
}

// identified returns the process with an identity if it is still running.
func identified(by runs.Process) (Left, bool) { return running(by.PID, by.Start) }

// running returns the process with a pid if it is still the one that was started at the given time.
func running(pid int, start uint64) (Left, bool) {
	p, ok := machine.LookAtProcess(pid)
	return leftAs(p), ok && !p.Dead && p.Start == start
}

// marked returns the processes whose environment has the entry mark and that were not started
// before since. Processes of other users are not among them, unless this user may look at them.
func marked(mark string, since uint64) (all []Left) {
	for _, p := range machine.Processes() {
		if p.Dead || p.Start < since {
			continue
		}
		text, err := os.ReadFile("/proc/" + strconv.Itoa(p.PID) + "/environ")
		if err == nil && slices.Contains(strings.Split(string(text), "\x00"), mark) {
			all = append(all, leftAs(p))
		}
	}
	return all
}

// Runs reports whether the process is still running.
func (l Left) Runs() bool {
	_, ok := running(l.PID, l.start)
	return ok
}

// gpuFiles are the files that every process has open that uses a GPU for computing, with CUDA or
// ROCm. Programs that only watch a GPU have none of them open.
var gpuFiles = []string{"/dev/nvidia-uvm", "/dev/kfd"}

// Holds returns what the process holds that another attempt of the command needs: a GPU, or a file in
// one of places that it has open for writing. It returns "" if it holds neither. Files that are a
// process's standard streams are its log, and are no hindrance.
func (l Left) Holds(places []string) string {
	for _, d := range machine.Descriptors(l.PID) {
		if slices.Contains(gpuFiles, d.Path) {
			return "a GPU"
		}
		if d.Number <= 2 || !d.Writes() {
			continue
		}
		for _, place := range places {
			if d.Path == place || strings.HasPrefix(d.Path, strings.TrimSuffix(place, "/")+"/") {
				return place
			}
		}
	}
	return ""
}

// End asks processes to end, kills those that have not ended when the time grace has passed, and
// returns when all have ended or could not be killed.
func End(all []Left, grace time.Duration, trouble func(error)) {
	ask := func(l Left, s syscall.Signal) {
		if l.Runs() {
			send([]machine.Process{{PID: l.PID}}, s)
		}
	}
	for _, l := range all {
		ask(l, syscall.SIGTERM)
	}
	began := time.Now()
	for look := 5 * time.Millisecond; ; look = min(2*look, 200*time.Millisecond) {
		all = slices.DeleteFunc(all, func(l Left) bool { return !l.Runs() })
		switch since := time.Since(began); {
		case len(all) == 0:
			return
		case since > grace+untilGivenUp:
			trouble(fmt.Errorf("these processes could not be killed: %s", LeftText(all)))
			return
		case since > grace:
			for _, l := range all {
				ask(l, syscall.SIGKILL)
			}
		}
		time.Sleep(look) // nothing tells when a process that is no child ends
	}
}
