package report

import (
	"sync"
	"time"

	"headroom/memory"
	"headroom/recovery"
	"headroom/runs"
)

// Input is what a report is drawn from. Everything but Name may be empty.
type Input struct {
	Name    string             // of the run
	Entries []runs.Entry       // the journal, in the order it was written
	Steps   []runs.StepReport  // the metrics, in the order they were written
	Seen    []runs.ProcessStep // the metrics of a wrapped command

	Planned   int       // optimizer steps of the whole run; 0 if not known
	Effective int       // configured samples per optimizer step; 0 takes the first plan of the journal
	Device    string    // the device that it ran on, such as "NVIDIA H200"; may be empty
	Command   string    // the command that was wrapped; "" if headroom itself trained
	Resumable bool      // headroom resume would start that command again
	Trained   string    // what headroom itself trained, and on what, in words; may be empty
	Version   string    // of the headroom that draws the report; may be empty
	Simulated bool      // the other processes are simulated by device.squeeze in the run's own configuration
	Running   bool      // a live process holds the run: if none does, a journal with no end was cut off
	Problems  []string  // what could not be read in the journal or the metrics, one sentence each
	Made      time.Time // when the report is drawn; zero leaves it out
}

// Report is a drawn report. Its fields are for reading; it is safe for
// concurrent use.
type Report struct {
	Name, Device string
	Command      string // the command that was wrapped; "" if headroom itself trained
	Trained      string // what headroom itself trained, in words
	About        string // what the command was recognised as, where its checkpoints are, and what it runs on; may be empty
	Version      string // of the headroom that drew it
	Ran          string // version of the headroom that made the attempts, or versions; may be empty
	Simulated    bool   // the other processes are simulated by the run's own configuration
	Made         time.Time
	Problems     []string // what could not be read

	Outcome     Outcome
	Accounting  Accounting
	Ledger      []Row // what happened, oldest first
	Failures    Failures
	Memory      Usage
	Speed       Speed
	Loss        Loss
	Checkpoints Checkpoints
	Watched     Watched
	Sizes       []Size    // a summary of each micro-batch that ran, largest first
	Attempts    []Attempt // oldest first
	Advice      []string  // what to change next, most urgent first; never empty

	steps []runs.StepReport  // those not rolled back: a step made again appears once
	seen  []runs.ProcessStep // of a wrapped command
	draw  func() []Picture   // the pictures, drawn when they are first asked for
}

// New works out the report of a run. It keeps no reference to the input's
// journal, and reads Steps for as long as the report is used.
func New(in Input) *Report {
	r := &Report{Name: in.Name, Device: clipped(in.Device, textLimit), Command: clipped(in.Command, longTextLimit), Trained: clipped(in.Trained, longTextLimit),
		Version: in.Version, Simulated: in.Simulated, Made: in.Made, About: about(in.Entries), Ran: ran(in.Entries)}
	for _, p := range in.Problems {
		r.Problems = append(r.Problems, clipped(p, textLimit))
	}
	r.steps, r.Accounting = account(in)
	r.seen = trainers(in.Seen)
	r.Attempts = attempts(in, r.seen)
	r.Checkpoints = checkpoints(in)
	r.Watched = watched(in.Entries)
	r.Outcome = outcome(in, r)
	if last := r.Last(); last != nil && last.Ended == clipped(r.Outcome.Reason, endLimit) && r.Outcome.State == Failed {
		last.Ended = "failed" // the top of the page says why
	}
	r.Ledger = ledger(in, r.Attempts)
	if in.Simulated {
		simulatedHints(r.Ledger)
	}
	r.Failures = failures(r.Ledger, r.Outcome)
	r.Memory = memoryUse(r.steps, in.Entries)
	if len(r.seen) > 0 {
		r.Memory = commandsMemory(r.seen)
	}
	r.Speed = speed(r)
	r.Loss = loss(r.steps)
	r.Sizes = sizes(r.steps)
	r.Advice = advice(in, r)
	r.draw = sync.OnceValue(func() []Picture {
		if r.Command == "" {
			return pictures(r)
		}
		return commandPictures(r)
	})
	return r
}

// Tone is how good or bad a fact is. It is always shown together with words.
type Tone string

// The tones.
const (
	Good Tone = "good"
	Info Tone = "info"
	Warn Tone = "warn"
	Bad  Tone = "bad"
)

// firstPlan is the first plan that the journal records.
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

// verdictOf is the verdict that an entry carries, itself or in its decision.
func verdictOf(e runs.Entry) *memory.Verdict {
	if e.Verdict == nil && e.Decision != nil {
		return e.Decision.Verdict
	}
	return e.Verdict
}
