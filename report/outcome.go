package report

import (
	"fmt"
	"strings"
	"time"

	"headroom/recovery"
	"headroom/report/words"
	"headroom/runs"
)

// State is how far a run has got.
type State string

// The possible states of a run.
const (
	Empty       State = "empty"       // nothing was recorded
	Running     State = "running"     // not ended yet: the report shows the run so far
	Finished    State = "finished"    // all steps were completed
	Interrupted State = "interrupted" // stopped by a signal; can be resumed
	Failed      State = "failed"      // ended without finishing
	CutOff      State = "cut off"     // ended without recording why: killed, or the machine went down
)

// Outcome says whether the run finished.
type Outcome struct {
	State   State
	Tone    Tone
	Title   string // "finished: 200 of 200 steps"
	Reason  string // why it ended, in the run's own words; may be empty
	Steps   int    // optimizer steps that were not rolled back; for a wrapped command, the steps that a worker saw
	Planned int    // steps of the whole run; 0 if not known

	entry runs.Entry // the entry that ended the run; zero if none did

	Begin, End time.Time     // times of the first and last line of the journal
	Active     time.Duration // time in attempts, without the pauses between them
}

func outcome(in Input, r *Report) Outcome {
	o := Outcome{State: Empty, Tone: Warn, Planned: in.Planned, Steps: r.body.steps(in, r)}
	for _, a := range r.Attempts {
		o.Active += a.End.Sub(a.Begin)
	}
	if n := len(in.Entries); n > 0 {
		o.Begin, o.End = in.Entries[0].Time, in.Entries[n-1].Time
	}
	o.State, o.Reason, o.entry = ending(in)
	o.Reason = clipped(o.Reason, longTextLimit)
	switch o.State {
	case Finished:
		o.Tone = Good
	case Failed, CutOff:
		o.Tone = Bad
	case Running:
		o.Tone = Info
	}
	if o.State == Finished && o.Steps < o.Planned {
		o.Tone = Bad
		o.Reason = fmt.Sprintf("the journal says that the run is done, but only %s of %s steps are recorded", words.Count(o.Steps), words.Count(o.Planned))
	}
	o.Title = strings.TrimSuffix(fmt.Sprintf("%s: %s", o.State, r.body.progress(o, r)), ": ")
	if r.Accounting.State == Broken {
		o.Tone = Bad
		o.Title += ", effective batch NOT kept"
	}
	return o
}

// ending returns the state in which the journal leaves the run, the reason, and the entry that
// ended the run, if one did. An attempt that starts after an end cancels that end.
func ending(in Input) (State, string, runs.Entry) {
	state, reason := CutOff, "the journal stops mid-run: the process was killed or the machine went down"
	if len(in.Entries) == 0 && len(in.Steps) == 0 {
		state, reason = Empty, "nothing was recorded"
	}
	if in.Running {
		state, reason = Running, ""
	}
	for i := len(in.Entries) - 1; i >= 0; i-- {
		switch e := in.Entries[i]; e.Kind {
		case runs.KindDone:
			return Finished, e.Text, e
		case runs.KindFailed:
			if e.Decision != nil && e.Decision.Reason != "" {
				return Failed, e.Decision.Reason, e
			}
			return Failed, e.Text, e
		case runs.KindInterrupted:
			return Interrupted, e.Text, e
		case runs.KindAttempt:
			return state, reason, runs.Entry{}
		}
	}
	return state, reason, runs.Entry{}
}

// Attempt is one attempt of a run, from its start to its end.
type Attempt struct {
	Number     int
	From, To   int // optimizer steps finished when the attempt began and when it ended; for a wrapped command, the steps of checkpoints
	Made       int // optimizer steps that a worker saw in a wrapped command's process; 0 if not known
	Begin, End time.Time
	Start      float64 // seconds until the first step began, for a wrapped command; 0 if not known
	Ended      string  // the last thing that the journal says about the attempt's end; empty if it says nothing
}

func attempts(in Input, seen []runs.ProcessStep) []Attempt {
	var all []Attempt
	made := stepsMade(seen)
	for _, e := range in.Entries {
		if e.Kind == runs.KindAttempt || len(all) == 0 {
			all = append(all, Attempt{Number: max(e.Attempt, len(all)+1), From: e.Step, To: e.Step, Begin: e.Time, Made: made[e.Attempt]})
		}
		a := &all[len(all)-1]
		a.End, a.To = e.Time, e.Step
		switch e.Kind {
		case runs.KindAttempt: // the entry that starts the run may come before this one
			a.Number, a.From, a.Made = max(1, e.Attempt), e.Step, made[e.Attempt]
		case runs.KindExit:
			a.Ended = e.Text
		case runs.KindDone, runs.KindFailed, runs.KindInterrupted:
			a.Ended = lastWords(e)
		case runs.KindGone:
			a.Ended = "device lost: " + e.Text
		case runs.KindDecision:
			if d := e.Decision; a.Ended == "" && d != nil && d.Remedy == recovery.Relaunch {
				a.Ended = d.Reason
			}
		}
	}
	for i := range all {
		all[i].Ended, all[i].Start = clipped(all[i].Ended, endLimit), startTime(seen, all[i])
	}
	return withoutPreamble(all)
}

// lastWords returns what the last entry of an attempt says, without what would help, which is
// among the advice.
func lastWords(e runs.Entry) string {
	if e.Kind == runs.KindFailed && e.Decision != nil && e.Decision.Verdict != nil {
		return fmt.Sprintf("gave up in step %d", e.Step+1)
	}
	return e.Text
}

// withoutPreamble adds everything before the first attempt to that attempt, because the
// start of the run is not an attempt of its own.
func withoutPreamble(all []Attempt) []Attempt {
	if len(all) > 1 && all[0].Number == all[1].Number {
		all[1].Begin = all[0].Begin
		return all[1:]
	}
	return all
}
