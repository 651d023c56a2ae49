package exits

import (
	"fmt"
	"strings"
	"syscall"

	"headroom/memory"
	"headroom/wrap/command"
)

// These hints say what helps when host memory or /dev/shm runs out.
const (
	fewerWorkers = "fewer data loader workers, less prefetching and no pinned memory save host memory; a smaller micro-batch seldom helps"
	largerShm    = "give the container a larger /dev/shm (docker run --shm-size, --ipc=host), or use fewer data loader workers"
)

// killed returns the outcome of a command if SIGKILL or SIGBUS ended it or one of its
// processes, or if the kernel's OOM killer did. It returns false if there was no kill,
// or if the log explains the end better. The signal alone proves nothing: schedulers and
// people send it too.
func (c classifier) killed(x fault) (Outcome, bool) {
	k := c.exit.Kernel
	seen, one := c.sigkill(x)
	switch {
	case k.GroupKills > 0 && (one || !x.raised):
		sure := Certain
		if !one {
			sure = Likely
		}
		return c.memory(OutOfHostMemory, sure, x, seen,
			fmt.Sprintf("the kernel's OOM killer killed %d of the processes in the command's control group", k.GroupKills)), true
	case c.found.confirmed != "":
		return c.memory(OutOfHostMemory, Certain, x, "the kernel or the scheduler says so: "+c.found.confirmed, seen), true
	case one && x.match.meaning.memory():
		return Outcome{}, false // a log says more than the signal
	case one && k.SystemKills > 0:
		return c.memory(OutOfHostMemory, Possible, x, seen,
			fmt.Sprintf("the kernel's OOM killer meanwhile killed %d of this machine's processes, but they may not have belonged to this command", k.SystemKills)), true
	case one:
		o := c.outcome(Failed, Certain, x, seen,
			"nothing shows that memory was the reason: the kernel's counters and the log show no OOM kill")
		o.Hint = "a scheduler's time limit, preemption and kill -9 look the same; where the control group's counters cannot be read, see dmesg"
		return o, true
	case c.signal() == syscall.SIGBUS && !x.raised:
		return c.memory(OutOfSharedMemory, Possible, x, seen, "a full /dev/shm is the usual reason; a file that shrank while it was mapped is another"), true
	}
	return Outcome{}, false
}

// sigkill reports whether SIGKILL ended the command or one of its processes, and says in words
// how the command ended.
func (c classifier) sigkill(x fault) (seen string, one bool) {
	switch {
	case x.match.meaning == workerKilled:
		return c.sentence(x), true
	case c.found.killed != "":
		return strings.TrimSpace(c.found.killed), true
	}
	return c.status(), c.signal() == syscall.SIGKILL
}

// untold returns the outcome of a failed command whose output shows no error of its own.
func (c classifier) untold() Outcome {
	if n := c.found.allocator; n != nil && !c.found.survived(*n) && c.found.lines-n.line <= allocatorNear {
		n.understand()
		return c.memory(OutOfMemory, Likely, *n, "its last output reports a failed allocation: "+n.message, c.status())
	}
	o := c.outcome(Failed, Certain, c.noFault(), c.status(), "its last output shows no error that explains why it ended")
	if c.signal() == syscall.SIGTERM || c.signal() == syscall.SIGINT {
		o.Reasons = []string{c.status() + ", and headroom did not send that signal"}
	}
	for _, x := range c.found.faults {
		if !c.found.survived(x) {
			o.Reasons[len(o.Reasons)-1] = "its last output shows only the consequences of another process ending: " + x.words()
			o.Error = x.words()
			break
		}
	}
	return o
}

// allocatorNear is the greatest distance, in lines, from the end of the output at which
// an allocator's report still counts as the reason for the end. An allocator reports
// every failed allocation, even one that it recovers from.
const allocatorNear = 20

// memory returns the outcome of a memory failure, with all the numbers that are known.
func (c classifier) memory(k Kind, sure Confidence, x fault, reasons ...string) Outcome {
	o := c.outcome(k, sure, x, reasons...)
	a := readAmounts(x.message)
	if n := c.found.allocator; k == OutOfMemory && a.requested == 0 && n != nil && !c.found.survived(*n) {
		a = readAmounts(n.message)
	}
	o.Device, o.Where = a.device, usersLine(x.frames)
	o.Evidence = &memory.Evidence{Host: k != OutOfMemory, Failure: memory.OutOfMemoryError{
		Requested: a.requested, Phase: x.phase(),
	}}
	switch k {
	case OutOfMemory:
		o.Evidence.Failure.Stats, o.Evidence.Failure.Others = c.filled(a), a.others
		o.Hopeless = hopeless(x, o.Evidence.Failure)
	case OutOfHostMemory:
		if o.Hint = fewerWorkers; o.Evidence.Failure.Phase == memory.PhaseCheckpoint {
			o.Hint, o.Hopeless = "", hostSaves
		}
	case OutOfSharedMemory:
		o.Hint = largerShm
	}
	return o
}

// filled returns the memory of a's device. Numbers that the error does not give come
// from the GPU samples. The samples show only how much the process holds in total, so
// all of that counts as allocated, and nothing as reserved but idle.
func (c classifier) filled(a failureNumbers) memory.Stats {
	s := a.stats
	g, known := gpuOf(c.exit.GPUs, a.device)
	if !known {
		return s
	}
	if s.Capacity == 0 {
		s.Capacity = g.Total
	}
	if s.Foreign == 0 {
		s.Foreign = g.Foreign
	}
	if s.Reserved == 0 && s.Allocated == 0 {
		s.Reserved, s.Allocated = g.Peak, g.Peak
	}
	if s.Free == 0 && a.stats.Reserved == 0 {
		s.Free = max(0, s.Capacity-s.Reserved-s.Foreign)
	}
	return s
}

// gpuOf returns the GPU that a process means by the number device, and whether the size
// of that GPU is known. A process numbers only the GPUs that it may use. If gpus has no
// such number, gpuOf returns the fullest GPU, where memory must have run out.
func gpuOf(gpus []command.GPU, device int) (command.GPU, bool) {
	if device >= 0 && device < len(gpus) {
		return gpus[device], gpus[device].Total > 0
	}
	var fullest command.GPU
	for _, g := range gpus {
		if fullest.Total == 0 || g.Total-g.Peak-g.Foreign < fullest.Total-fullest.Peak-fullest.Foreign {
			fullest = g
		}
	}
	return fullest, fullest.Total > 0
}
