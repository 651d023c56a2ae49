package report

import (
	"slices"
	"sync"
	"time"

	"headroom/memory"
	"headroom/recovery"
	"headroom/report/chart"
	"headroom/runs"
)

// Input is what a report is drawn from. Every field but Name may be empty.
type Input struct {
	Name    string             // name of the run
	Entries []runs.Entry       // the journal, in the order it was written
	Steps   []runs.StepReport  // the metrics, in the order they were written
	Seen    []runs.ProcessStep // the metrics of a wrapped command

	Planned   int       // optimizer steps of the whole run; 0 if not known
	Effective int       // configured samples per optimizer step; 0 means those of the first plan in the journal
	Device    string    // the device that the run used, such as "NVIDIA H200"; may be empty
	Command   string    // the command that was wrapped; "" if headroom itself trained
	Resumable bool      // running "headroom resume" would start the wrapped command again
	Trained   string    // what headroom itself trained, and on what, in words; may be empty
	Version   string    // version of headroom that draws the report; may be empty
	Simulated bool      // the other processes are simulated by device.squeeze in the run's own configuration
	Running   bool      // a live process holds the run; if this is false, a journal without an end was cut off
	Problems  []string  // what could not be read in the journal or the metrics, one sentence each
	Made      time.Time // when the report is drawn; zero leaves the time out
}

// Report is a drawn report. Callers must not change its fields. It is safe for concurrent
// use.
type Report struct {
	Name, Device string
	Command      string // the command that was wrapped; "" if headroom itself trained
	Trained      string // what headroom itself trained, in words
	About        string // how the command was recognised, where its checkpoints are, and its versions of Python and PyTorch; may be empty
	Version      string // version of headroom that drew the report
	Ran          string // version or versions of headroom that executed the attempts; may be empty
	Simulated    bool   // the other processes are simulated by the run's own configuration
	Made         time.Time
	Problems     []string // what could not be read, one sentence each

	Outcome     Outcome
	Accounting  Accounting
	Ledger      []Row // what happened, oldest first
	Failures    Failures
	Holder      *memory.Holder // what was found to hold memory that grows; nil if nothing was
	Holdings    *Holdings      // what memory was held for; nil if that is not known
	Memory      Usage
	Speed       Speed
	Loss        Loss
	Checkpoints Checkpoints
	Watched     Watched
	Sizes       []Size    // a summary for each way in which steps were cut, largest micro-batch first
	Attempts    []Attempt // oldest first
	Advice      []string  // what to change next, most urgent first; never empty

	steps []runs.StepReport  // steps that were not rolled back; a step that was run again appears once
	seen  []runs.ProcessStep // the recorded steps of a wrapped command
	body  *body
	draw  func() []chart.Picture // the pictures, drawn when they are first asked for
}

// New works out the report of a run. It keeps no reference to the journal in the input,
// but reads in.Steps for as long as the report is used.
func New(in Input) *Report {
	r := &Report{Name: in.Name, Device: clipped(in.Device, textLimit), Command: clipped(in.Command, longTextLimit), Trained: clipped(in.Trained, longTextLimit),
		Version: in.Version, Simulated: in.Simulated, Made: in.Made, About: about(in.Entries), Ran: ran(in.Entries), body: bodyOf(in)}
	for _, p := range in.Problems {
		r.Problems = append(r.Problems, clipped(p, textLimit))
	}
	r.steps, r.Accounting = account(in)
	r.seen = trainers(in.Seen)
	r.Attempts = attempts(in, r.seen)
	r.Checkpoints = checkpoints(in, r.body)
	r.Watched = watched(in.Entries)
	r.Outcome = outcome(in, r)
	if last := r.Last(); last != nil && last.Ended == clipped(r.Outcome.Reason, endLimit) && r.Outcome.State == Failed {
		last.Ended = "failed" // the top of the page says why
	}
	r.Ledger = ledger(in, r.body, r.Attempts)
	if in.Simulated {
		simulatedHints(r.Ledger)
	}
	r.Holder, r.Holdings = holder(in.Entries), held(in)
	r.Failures = failures(r.Ledger, r.Outcome)
	r.Memory = memoryUse(r.steps, in.Entries)
	if len(r.seen) > 0 {
		r.Memory = commandsMemory(r.seen)
		r.Memory.Ranks = ranksOnHost(in.Seen)
	}
	r.Speed = speed(r)
	r.Loss = loss(r.steps)
	r.Sizes = sizes(r.steps)
	r.Advice = advice(in, r)
	r.draw = sync.OnceValue(func() []chart.Picture { return chart.Draw(r.body.charts(r)) })
	return r
}

// Tone says how good or bad a fact is. It is always shown together with words.
type Tone string

// The possible tones, from best to worst.
const (
	Good Tone = "good"
	Info Tone = "info"
	Warn Tone = "warn"
	Bad  Tone = "bad"
)

// firstPlan returns the first plan that the journal records, and whether there is one.
func firstPlan(entries []runs.Entry) (recovery.Plan, bool) {
	for _, e := range entries {
		switch {
		case e.Plan != nil:
			return *e.Plan, true
		case e.Decision != nil && e.Decision.Plan.Effective > 0:
			return e.Decision.Plan, true
		}
	}
	return recovery.Plan{}, false
}

// planOf returns the newest plan in the journal with the given micro-batch, or the zero Plan.
func planOf(entries []runs.Entry, micro int) recovery.Plan {
	for _, e := range slices.Backward(entries) {
		if e.Decision != nil && e.Decision.Plan.Effective > 0 && e.Decision.Plan.Micro == micro {
			return e.Decision.Plan
		}
	}
	return recovery.Plan{}
}

// verdictOf returns the verdict of an entry, or else that of its decision, or nil if
// neither has one.
func verdictOf(e runs.Entry) *memory.Verdict {
	if e.Verdict == nil && e.Decision != nil {
		return e.Decision.Verdict
	}
	return e.Verdict
}
