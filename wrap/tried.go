package wrap

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"headroom/harness"
	"headroom/memory"
	"headroom/recovery"
	"headroom/wrap/command"
	"headroom/wrap/exits"
	"headroom/wrap/rewrite"
)

// Tried is how a trial ended.
type Tried struct {
	Micro        int          `json:"micro"`
	Accumulation int          `json:"accumulation"`
	Fits         bool         `json:"fits"`
	Steps        int          `json:"steps,omitempty"`              // optimizer steps that it ran; 0 if headroom ended it when its memory stayed flat
	Peak         memory.Bytes `json:"peak,omitempty"`               // the most that its processes held of one GPU or, if it did not fit, the least that it needed; 0 if not known
	Room         memory.Bytes `json:"room,omitempty"`               // the most that its processes could have held of that GPU; 0 if not known
	Limit        memory.Bytes `json:"limit,omitempty"`              // the most that its allocator may hold of that GPU, as reported by the allocator or set by the command; 0 if not known
	Seconds      float64      `json:"seconds"`                      // how long it lasted, including the start
	PerSecond    float64      `json:"samples_per_second,omitempty"` // speed that the framework reports
	Text         string       `json:"text"`                         // what was seen, in words

	beside memory.Bytes // the least that its processes held of that GPU outside the allocator, such as CUDA's context
}

// TrialError says that a trial failed for a reason other than memory.
type TrialError struct {
	Micro int    // micro-batch of the trial
	Code  int    // exit status of the trial
	Why   string // what was seen
	Last  string // the last lines of the trial's output
}

func (e *TrialError) Error() string {
	return fmt.Sprintf("the trial of micro-batch %d failed, and not for lack of memory: %s", e.Micro, e.Why)
}

// judge returns what a trial of p shows. stayed means that headroom ended the trial because
// its memory had stayed flat. most is how much host memory the trial could hold.
func (t *Trials) judge(p recovery.Plan, exit command.Exit, stayed bool, most memory.Bytes) (Tried, error) {
	rule := t.Match.Profile.Trial
	tried := Tried{Micro: p.Largest(), Accumulation: p.Accumulation(), Seconds: exit.Seconds, PerSecond: rule.SpeedIn(exit.Tail)}
	tried.Peak, tried.Room = held(exit.GPUs)
	tried.Limit = allowedBy(t.Match, exit.GPUs)
	if t.Memory > 0 {
		tried.Room = min(t.Memory, cmp.Or(tried.Room, t.Memory))
	}
	exit.Stopped = exit.Stopped && !stayed // the trial may have run out of memory just before it was ended
	o := exits.Classify(exit).InHostMemory(exit.GPUs, most)
	short := fmt.Sprintf("micro-batch %d does not fit", tried.Micro)
	switch {
	case o.Kind == exits.OutOfMemory && o.OutOfMemory():
		return t.tooLarge(tried, p, o)
	case o.Kind == exits.Done && o.Error != "":
		tried.Text = fmt.Sprintf("%s: the trial exited with status 0 after running out of memory: %s", short, o.Error)
		return tried, nil
	case o.Kind != exits.Done && !stayed:
		return tried, t.failed(tried, o, exit)
	case t.Memory > 0 && tried.Peak > t.Memory:
		tried.Text = fmt.Sprintf("%s: the trial held %v, more than the %v being simulated", short, tried.Peak, t.Memory)
		return tried, nil
	}
	tried.Fits, tried.Text = true, fmt.Sprintf("micro-batch %d fits", tried.Micro)
	if tried.Peak > 0 {
		tried.Text += fmt.Sprintf(": peak %v", tried.Peak)
	}
	if !stayed {
		tried.Steps = rule.Steps
	} else {
		tried.Text += fmt.Sprintf(", unchanged for %v", t.FlatFor)
	}
	return tried, nil
}

// tooLarge returns what a trial of p shows that ran out of memory.
func (t *Trials) tooLarge(tried Tried, p recovery.Plan, o exits.Outcome) (Tried, error) {
	short := fmt.Sprintf("micro-batch %d does not fit", tried.Micro)
	oom := o.Evidence.Failure
	training := p
	training.Eval = 0 // a trial evaluates nothing
	if why := o.HopelessAt(training); why != "" {
		verdict := memory.Verdict{Cause: memory.Model, Why: why}
		return tried, &harness.GaveUpError{Decision: recovery.Decision{Remedy: recovery.Stop, Plan: p, Verdict: &verdict, Reason: short + ", and no smaller one will: " + why}}
	}
	if oom.Assumed { // only the failed request is known, not how much memory there was
		tried.Peak, tried.Room, tried.Text = 0, 0, short+": it needs "+oom.Shortage()
		return tried, nil
	}
	if t.Memory == 0 { // otherwise t.Memory simulates a whole GPU, and memory outside the allocator counts, too
		tried.Limit = cmp.Or(oom.Stats.Capacity, tried.Limit)
		tried.beside = max(0, tried.Peak-tried.Limit)
	}
	tried.Peak, tried.Room, tried.Text = cmp.Or(oom.Needed(), tried.Peak), cmp.Or(tried.Room, oom.Stats.Available()), short
	if oom.Needed() > 0 {
		tried.Text += ": it needs " + oom.Shortage()
	}
	return tried, nil
}

// failed returns the error for a trial that failed for a reason other than memory.
func (t *Trials) failed(tried Tried, o exits.Outcome, exit command.Exit) error {
	said := string(exit.Tail)
	if t.Memory > 0 && strings.Contains(said, fraction) && strings.Contains(said, "Unrecognized") {
		return &rewrite.UntriableError{Reason: "this PyTorch does not support " + fraction + ", which is needed to simulate less memory",
			Hint: "PyTorch 2.10 and later support it; without --memory the search uses what the GPU really has"}
	}
	return &TrialError{tried.Micro, exit.Code, exits.Describe(o, exit), lastLines(said, 15)}
}

// allowedBy returns the memory limit that the command's settings give PyTorch's allocator on
// the GPU on which the command's peak was highest. It returns 0 if the settings contain no
// limit, or if the command held more, which shows that the settings are not in force.
func allowedBy(m *rewrite.Match, gpus []command.GPU) memory.Bytes {
	const context = 2 * memory.GiB // what a process may hold outside the allocator
	peak, total := memory.Bytes(0), memory.Bytes(0)
	for _, g := range gpus {
		if total == 0 || g.Peak > peak {
			peak, total = g.Peak, g.Total
		}
	}
	for _, variable := range command.AllocatorVariables {
		text, _ := m.Launch.Getenv(m.Command, variable)
		share, err := strconv.ParseFloat(command.AllocatorSettings(text)[fraction], 64)
		if limit := memory.Bytes(share * float64(total)); err == nil && share > 0 && share < 1 && peak <= limit+context {
			return limit
		}
	}
	return 0
}

// held returns the most memory that a trial's processes held on any one GPU, and the most
// that they could have held on that GPU.
func held(gpus []command.GPU) (peak, room memory.Bytes) {
	for i, g := range gpus {
		if i == 0 || g.Peak > peak {
			peak, room = g.Peak, g.Total-max(g.Foreign, g.Before)
		}
	}
	return peak, max(0, room)
}

// lastLines returns the last n lines of a text that are not empty.
func lastLines(text string, n int) string {
	var lines []string
	for line := range strings.Lines(text) {
		if at := strings.LastIndexByte(strings.TrimRight(line, "\r\n"), '\r'); at >= 0 {
			line = line[at+1:] // the last state of a progress bar
		}
		if line = strings.TrimRight(line, "\r\n \t"); line != "" {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// fraction is the setting that limits PyTorch's allocator to a fraction of a GPU's
// memory. PyTorch has read it from the environment since version 2.10; earlier versions
// reject it.
const fraction = "per_process_memory_fraction"

// capped returns c with its allocator limited to the amount most, on a GPU whose memory
// is total. The user's own settings of the allocator are kept. The error is an
// [*rewrite.UntriableError].
func capped(c command.Line, most, total memory.Bytes) (command.Line, error) {
	if most > total {
		return c, &rewrite.UntriableError{Reason: fmt.Sprintf("%v is more than the GPU's %v: a smaller GPU can be simulated, a larger one cannot", most, total)}
	}
	names := []string{"PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"}
	var own []string
	for _, name := range names {
		value, set := c.Getenv(name)
		if strings.Contains(value, fraction) {
			return c, &rewrite.UntriableError{Reason: fmt.Sprintf("%s already sets %s", name, fraction), Hint: "remove it, or leave out --memory"}
		}
		if set && value != "" && !slices.Contains(own, value) {
			own = append(own, value)
		}
	}
	if len(own) > 1 {
		return c, &rewrite.UntriableError{Reason: strings.Join(names, " and ") + " differ, but --memory has to put the same setting into both", Hint: "set both to the same value"}
	}
	value := strings.Join(append(own, fmt.Sprintf("%s:%.4f", fraction, float64(most)/float64(total))), ",")
	c.Env = c.Env[:len(c.Env):len(c.Env)]
	for _, name := range names {
		c.Env = append(c.Env, name+"="+value)
	}
	return c, nil
}
