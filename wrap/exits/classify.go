package exits

import (
	"fmt"
	"slices"
	"strings"
	"syscall"

	"headroom/memory"
	"headroom/wrap/command"
)

// LittleFree is a share of a GPU's memory. If less than this share was free, a library's
// ambiguous error counts as lack of memory. A cuBLAS handle with its kernels takes up to
// 1 GiB, and sampling from outside misses short peaks, so the share is not tiny.
const LittleFree = 0.05

// Classify says why one attempt of a command ended. It is pure: it reads no clock, does no
// I/O and logs nothing. Its time is linear in len(e.Tail).
//
// Classify considers the evidence in this order, and the first item that gives a reason
// decides:
//
//	request        the command had been asked to stop
//	exit status 0  it is done, whatever it printed
//	error files    of a launcher's workers: the earliest error, by the workers' clocks,
//	               that is not a consequence of another rank's
//	exceptions     the one that ended the first failing rank, by its traceback
//	kills          SIGKILL or SIGBUS, with what the kernel and the scheduler counted
//	free text      a log line that names the reason, if no exception does
//
// The following is no evidence: an error after which the training continued, advice,
// documentation, warnings, and what other ranks print once one has failed. If nothing
// decides, the kind is [Failed] and the reasons say what was seen.
func Classify(e command.Exit) Outcome {
	tail := e.Tail
	if e.Code == 0 && e.Signal == 0 && !mayTellOfMemory(tail) {
		tail = nil // scanning the tail takes 50 ms, and only texts about memory would matter
	}
	c := classifier{exit: e, found: scan(tail)}
	switch {
	case e.Stopped:
		return c.outcome(Stopped, Certain, c.noFault(), "it had been asked to stop; "+c.status())
	case e.Code == 0 && e.Signal == 0:
		return c.done()
	}
	if x, ok := firstRecord(e.Ranks); ok {
		x = c.withTraceback(x)
		return c.because(x, Certain, "first error in the launcher's error files: ")
	}
	x, ok := c.found.root()
	if ok && x.raised {
		return c.because(x, c.sureness(x), "")
	}
	if !ok {
		x = c.noFault()
	}
	if o, killed := c.killed(x); killed {
		return o
	}
	if ok {
		return c.because(x, Likely, "")
	}
	return c.untold()
}

type classifier struct {
	exit  command.Exit
	found findings
}

// noFault returns the fault to use if no error was found. It has the rank that the
// launcher named, if any.
func (c classifier) noFault() fault { return fault{rank: c.found.firstRank} }

func (c classifier) status() string {
	if s := c.signal(); s != 0 {
		return fmt.Sprintf("signal %d (%v) ended it", int(s), s)
	}
	return fmt.Sprintf("it exited with status %d", c.exit.Code)
}

// signal returns the signal that ended the command or a process that it ran, or 0 if
// there is none. If signal n ended a process, a shell reports exit status 128 + n.
func (c classifier) signal() syscall.Signal {
	if c.exit.Signal == 0 && c.exit.Code > 128 && c.exit.Code <= 128+31 {
		return syscall.Signal(c.exit.Code - 128)
	}
	return c.exit.Signal
}

func (c classifier) outcome(k Kind, sure Confidence, x fault, reasons ...string) Outcome {
	return Outcome{Kind: k, Confidence: sure, Reasons: reasons, Rank: x.rank, Device: -1, Error: x.words()}
}

// errorMost is the largest number of bytes of an error that an outcome quotes.
const errorMost = 300

// words returns a fault in the command's own words, shortened to errorMost bytes.
func (f fault) words() string {
	text := f.message
	if f.typ != "" {
		text = strings.TrimSuffix(f.typ+": "+f.message, ": ")
	}
	text = oneLine(text)
	if len(text) > errorMost {
		text = strings.ToValidUTF8(text[:errorMost], "") + "…"
	}
	return text
}

func (c classifier) done() Outcome {
	o := c.outcome(Done, Certain, c.noFault(), "it exited with status 0")
	if x, ok := c.found.root(); ok && x.match.meaning.memory() {
		o.Error = x.words()
		o.Reasons = append(o.Reasons, "yet the last error that it reported was about memory: "+x.words())
		o.Hint = "check that the training is complete: the command may have swallowed its own failure"
	}
	return o
}

// sureness returns how far the text of an exception can be relied on: less if another
// error of the same rank followed it.
func (c classifier) sureness(x fault) Confidence {
	for _, y := range c.found.candidates() {
		if y.raised && y.rank == x.rank && y.line > x.line && y.match.meaning != x.match.meaning && y.chain != x.chain {
			return Likely
		}
	}
	if x.other {
		return Likely
	}
	return Certain
}

// because returns the outcome of a command that failed with x as the root cause. The
// reason begins with source, which says where x was found and may be empty.
func (c classifier) because(x fault, sure Confidence, source string) Outcome {
	reason := source + c.sentence(x)
	switch m := x.match; m.meaning {
	case deviceMemory:
		return c.memory(OutOfMemory, sure, x, reason).quoting(reason)
	case hostMemory:
		return c.memory(OutOfHostMemory, sure, x, reason).quoting(reason)
	case sharedMemory:
		return c.memory(OutOfSharedMemory, sure, x, reason).quoting(reason)
	case ifLittleFree:
		return c.ambiguous(x, reason)
	case ifLimited:
		return c.ambiguousHost(x, reason)
	case deviceGone:
		o := c.outcome(DeviceGone, sure, x, reason, m.what)
		o.Hint = "a new process may be able to resume from a checkpoint; if it fails again in the same place, set CUDA_LAUNCH_BLOCKING=1 to see where that is"
		return o
	case oversize:
		o := c.outcome(Failed, sure, x, reason, m.what)
		o.Hint = "this is about the size of a tensor, not about memory: a smaller micro-batch avoids it"
		return o
	case lookalike:
		return c.outcome(Failed, sure, x, reason, "this is not about the device's memory: "+m.what)
	case workerKilled:
		o, _ := c.killed(x)
		return o
	}
	o := c.outcome(Failed, sure, x, reason)
	if n := c.exit.Kernel.GroupKills; n > 0 {
		o.Reasons = append(o.Reasons, fmt.Sprintf("the kernel's OOM killer also killed %d of the processes in the command's control group, and this error does not explain that", n))
	}
	return o
}

// quoting returns o with reason as one of those that only quote what o has, too.
func (o Outcome) quoting(reason string) Outcome {
	o.quotes = append(slices.Clone(o.quotes), reason)
	return o
}

// sentence returns a sentence about a fault, with its rank and phase if they are known.
func (c classifier) sentence(x fault) string {
	who := "it"
	if x.rank != rankUnknown {
		who = fmt.Sprintf("rank %d", x.rank)
	}
	verb := "failed"
	if !x.raised {
		verb = "reported an error"
	}
	in := ""
	if p := x.phase(); p != memory.PhaseUnknown {
		in = fmt.Sprintf(" in %s", p)
	}
	return fmt.Sprintf("%s %s%s: %s", who, verb, in, x.words())
}

// ambiguous returns the outcome for a library's error that may have been caused by a lack
// of device memory. It depends on whether an allocation had just failed, or on how much
// memory was free.
func (c classifier) ambiguous(x fault, reason string) Outcome {
	a := readAmounts(x.message)
	if n := c.found.allocator; n != nil && !c.found.survived(*n) {
		o := c.memory(OutOfMemory, Likely, x, reason)
		o.Reasons = append(o.Reasons, x.match.what+", right after the allocator ran out of memory: "+n.message)
		return o
	}
	g, known := gpuOf(c.exit.GPUs, a.device)
	if !known {
		return c.outcome(Failed, Likely, x, reason, x.match.what+"; lack of memory can cause it, but it is unclear whether it did, because it is not known how much was free")
	}
	left := max(0, g.Total-g.Peak-g.Foreign)
	if float64(left) >= LittleFree*float64(g.Total) {
		return c.outcome(Failed, Likely, x, reason, fmt.Sprintf("%s; lack of memory can cause it, but is unlikely here, because %v of %v was free", x.match.what, left, g.Total))
	}
	o := c.memory(OutOfMemory, Likely, x, reason)
	o.Reasons = append(o.Reasons, fmt.Sprintf("%s, and only %v of %v was free", x.match.what, left, g.Total))
	return o
}

// ambiguousHost returns the outcome for a library's error that may have been caused by a
// lack of host memory. It depends on whether ulimit sets a limit. Without one, Linux
// hardly ever refuses an allocation, but kills a process later.
func (c classifier) ambiguousHost(x fault, reason string) Outcome {
	if c.exit.Ulimit == 0 {
		return c.outcome(Failed, Likely, x, reason, x.match.what+"; lack of host memory can cause it, but is unlikely here, because ulimit sets no limit")
	}
	o := c.memory(OutOfHostMemory, Likely, x, reason)
	o.Reasons = append(o.Reasons, fmt.Sprintf("%s, and ulimit allows a process only %v of host memory", x.match.what, c.exit.Ulimit))
	return o
}

// firstRecord returns the root cause among a launcher's error files: the earliest error
// that is not a consequence of another rank's. The clocks of several machines differ, so
// a rank that only lost its peers is passed over even if its clock says that it failed
// first. Records without a time come last.
func firstRecord(ranks []command.RankError) (fault, bool) {
	ordered := slices.Clone(ranks)
	slices.SortStableFunc(ordered, func(a, b command.RankError) int {
		if a.Time.IsZero() != b.Time.IsZero() {
			return map[bool]int{true: 1, false: -1}[a.Time.IsZero()]
		}
		return a.Time.Compare(b.Time)
	})
	for _, r := range ordered {
		if x := faultOf(r); x.match.meaning != cascade && x.message+x.typ != "" {
			return x, true
		}
	}
	return fault{}, false
}

// faultOf converts r to a fault. r holds either an exception on a single line or its whole
// traceback.
func faultOf(r command.RankError) fault {
	text := strings.ReplaceAll(r.Message, `\n`, "\n")
	found := scan([]byte(text))
	x, ok := found.root()
	if !ok && len(found.faults) > 0 { // it has only consequences of other ranks' errors
		x = found.faults[len(found.faults)-1]
		x.understand()
	} else if !ok {
		x = fault{message: strings.TrimSpace(text[:min(len(text), messageMost)])}
		x.understand()
	}
	x.rank, x.raised = r.Rank, true
	return x
}

// withTraceback returns x, the fault of a record, with the traceback that the same rank
// printed.
func (c classifier) withTraceback(x fault) fault {
	if len(x.frames) > 0 {
		return x
	}
	for _, y := range c.found.candidates() {
		if (y.rank == x.rank || y.rank == rankUnknown) && y.match.meaning == x.match.meaning && y.typ != "" && strings.HasSuffix(y.typ, x.typ) {
			x.frames = y.frames
			if readAmounts(x.message).requested == 0 {
				x.message = y.message
			}
			return x
		}
	}
	return x
}
