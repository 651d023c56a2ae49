package report

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"headroom/memory"
	"headroom/recovery"
	"headroom/report/words"
	"headroom/runs"
)

// Row is one line of the ledger: something that happened, and what was done about it.
type Row struct {
	Number  int // counts from 1; pictures mark failures with this number
	Time    time.Time
	Attempt int
	// Step is the optimizer step that was running. For something that happened between
	// steps, it is the last finished step. For a wrapped command, it is a step of the
	// attempt's own process; 0 if that is not known.
	Step int
	Tone Tone

	Failed  bool         // an allocation failed
	InPlace bool         // the failure was survived inside the process
	Cause   memory.Cause // why memory ran out; "" if memory was not the reason
	What    string       // "out of memory: batch", "checkpoint failed", …
	Why     string       // why it happened, with the numbers
	Needed  memory.Bytes // the least memory that would have been needed; 0 if not known

	Remedy string // what was done; empty if nothing was recorded
	Reason string // why that was done
	Result string // the outcome of the remedy
	Hint   string // what the user could do
	Probes string // the sizes that a search tried; ! marks those that failed: "63! 31 47! 40"

	Before, After string          // how a step was cut, as in "27 × 3"; empty if that did not change
	Lost          float64         // seconds lost to this; 0 if not known
	last          recovery.Remedy // the latest remedy, if there were several
	repeated      bool            // a step that had failed before ran out of memory again
	unseen        bool            // Step is not known
	late          bool            // recorded only after its process had ended, so that what it cost may not be known
	from          int             // step of the checkpoint that a wrapped command's attempt began from
	once          bool            // the plan changed for one step only
	micro         int             // largest micro-batch of the new plan; 0 if the plan did not change
	starts        bool            // Result says which attempt started, and later outcomes are added to it
	refused       string          // what a worker said about a failure that it left to the command's own code
}

// At returns the step as text. The step of something that happened to a wrapped command
// may be unknown ("–"). If the command's process began from a checkpoint, its steps are
// written after the checkpoint's step: "10+2".
func (r Row) At() string {
	switch {
	case r.unseen:
		return "–"
	case r.from > 0:
		return words.Count(r.from) + "+" + words.Count(r.Step)
	}
	return words.Count(r.Step)
}

// unknownCost stands for an amount of lost time that is not known.
const unknownCost = "not known"

// uncounted reports whether the row is a failure that must have cost time, although it is
// not known how much.
func (r Row) uncounted() bool { return r.late && r.Failed && !r.repeated && r.Lost <= 0 }

// Cost returns the time lost, as text.
func (r Row) Cost() string {
	switch {
	case r.uncounted():
		return unknownCost
	case r.Lost <= 0:
		return "–"
	}
	return words.Seconds(r.Lost)
}

// texts returns those texts of the row that may be long.
func (r *Row) texts() []*string {
	return []*string{&r.What, &r.Why, &r.Remedy, &r.Reason, &r.Probes, &r.Result, &r.Hint}
}

// deviceLost is the value of What in a [Row] about a lost device.
const deviceLost = "device lost"

// bookkeeper turns the entries of the journal into rows.
type bookkeeper struct {
	rows    []Row
	plan    *recovery.Plan // the plan in force
	failure bool           // the newest row is a failure, or a loss of the device, and no decision has followed
	search  bool           // the newest row is a search that has not ended
	probed  float64        // seconds that the search's probes took
	begun   time.Time      // time of the newest row
	timed   bool           // some entry of the newest row gave a duration
	exited  bool           // the command has ended, and no attempt has started since
	again   bool           // the decision in the newest row was to start another attempt
	stopped string         // why nothing more is tried, from the newest row; "" if it does not say so

	body     *body
	attempts map[int]Attempt // by number
	inStep   map[int]int     // by attempt: the newest step in which a worker saw a failure
}

// ledger returns what happened in the run, oldest first: failures and what was done about
// them, changes of plan, and other kinds of trouble. It leaves out what went as it
// should, such as steps and checkpoints.
func ledger(in Input, body *body, attempts []Attempt) []Row {
	b := bookkeeper{body: body, attempts: map[int]Attempt{}, inStep: map[int]int{}}
	for _, a := range attempts {
		b.attempts[a.Number] = a
	}
	for _, e := range in.Entries {
		b.enter(e)
	}
	for i := range b.rows {
		b.rows[i].Number = i + 1
	}
	for i := len(b.rows) - 1; i > 0; i-- {
		if row, before := &b.rows[i], b.rows[i-1]; row.repeated && row.Why == before.Why {
			row.What, row.Why = strings.Replace(row.What, "out of memory", "out of memory again", 1), ""
		}
	}
	for i := range b.rows {
		if row := &b.rows[i]; row.Failed && row.refused != "" {
			row.Why = joined(". ", row.refused, row.Why)
		}
		for _, text := range b.rows[i].texts() {
			*text = clipped(*text, textLimit)
		}
	}
	return b.rows
}

// joined joins those texts that are not empty.
func joined(separator string, texts ...string) string {
	return strings.Join(slices.DeleteFunc(texts, func(text string) bool { return text == "" }), separator)
}

func (b *bookkeeper) enter(e runs.Entry) {
	switch e.Kind {
	case runs.KindPlan:
		b.planned(e)
	case runs.KindOOM:
		b.outOfMemory(e)
	case runs.KindSurvived:
		b.survived(e)
	case runs.KindRefused:
		b.open(e, Row{Tone: Warn, What: "not recovered in place", Why: e.Text, refused: joined("; ", e.Details(), e.Left())})
	case runs.KindDecision:
		b.decision(e)
	case runs.KindProbe:
		b.probe(e)
	case runs.KindSearch:
		b.searched(e)
	case runs.KindRemedy:
		b.result(e)
	case runs.KindExit:
		b.exited = true
	case runs.KindAttempt:
		b.started(e)
	case runs.KindGone:
		b.open(e, Row{Tone: Warn, What: deviceLost, Why: e.Text})
		b.failure = true
	case runs.KindFailed:
		b.failed(e)
	default:
		b.trouble(e)
	}
}

// troubles names the kinds of entries that are rows of their own, whatever comes before or after.
var troubles = map[runs.Kind]string{
	runs.KindCheckpointFailed: string(runs.KindCheckpointFailed),
	runs.KindJournalFailed:    string(runs.KindJournalFailed),
	runs.KindDamaged:          "checkpoint damaged",
	runs.KindMissing:          "file or checkpoint missing",
	runs.KindReleased:         "disk full",
	runs.KindWarning:          "warning",
	runs.KindLeft:             "left running",
	runs.KindInterrupted:      "interrupted",
	runs.KindFault:            "device fault",
}

// trouble adds a row if e is one of the troubles.
func (b *bookkeeper) trouble(e runs.Entry) {
	what := troubles[e.Kind]
	if what == "" {
		return
	}
	if e.Fault != nil {
		e.Time = e.Fault.Time
	}
	b.open(e, Row{Tone: Warn, What: what, Why: e.Text})
	b.spend(e)
}

// started records the start of an attempt. If a decision led to the attempt, the start is
// added to the row of that decision. Otherwise the start gets a row of its own, unless
// the attempt is the first.
func (b *bookkeeper) started(e runs.Entry) {
	switch {
	case b.again:
		row := b.newest()
		row.Result, row.starts = joined("; ", row.Result, e.Text), true
		if a := b.attempts[e.Attempt]; a.From > 0 { // the process would not have had to start once more
			row.Lost += a.Start
		}
	case e.Attempt > 1:
		b.open(e, Row{Tone: Info, What: fmt.Sprintf("attempt %d", e.Attempt), Why: e.Text, starts: true})
	}
	b.exited, b.again = false, false
}

// left removes the newest row and returns its text, if that row says only that a worker
// left a failure of this attempt to the command's own code. Otherwise it returns "". In
// this way, one row shows both that failure and the whole command running out of memory
// because of it.
func (b *bookkeeper) left(attempt int) string {
	if len(b.rows) == 0 || b.newest().Failed || b.newest().refused == "" || b.newest().Attempt != attempt {
		return ""
	}
	text := b.newest().refused
	b.rows = b.rows[:len(b.rows)-1]
	return text
}

func (b *bookkeeper) outOfMemory(e runs.Entry) {
	left := ""
	if e.Kind == runs.KindOOM {
		left = b.left(e.Attempt)
	}
	row := Row{Tone: Warn, Failed: true, repeated: e.Repeated, What: "out of memory", Why: e.Text}
	if e.OOM != nil {
		measured := e.OOM.Measured()
		row.Needed = measured.Needed()
	}
	if b.plan == nil { // for a command, no other entry has the first plan
		b.plan = e.Plan
	}
	if e.OOM == nil || e.OOM.Phase != memory.PhaseLoad {
		e.Step++ // the step that failed is the one after the last finished step
		if made := b.attempts[e.Attempt].Made; made > 0 && e.Kind == runs.KindOOM {
			e.InStep = made + 1
		}
		e.InStep = max(e.InStep, b.inStep[e.Attempt])
	}
	b.open(e, row)
	b.blame(verdictOf(e))
	b.newest().refused = left
	b.failure = true
	b.spend(e)
}

// survived adds a row for a failure that a worker recovered from inside a process. Its
// decision is about the pieces of one call, and the run's plan does not change.
func (b *bookkeeper) survived(e runs.Entry) {
	b.outOfMemory(e)
	b.failure = false
	row := b.newest()
	row.InPlace, row.Remedy = true, "survived in place"
	if e.InPlace == nil { // an earlier version wrote only the text
		row.Why = e.Text
		return
	}
	row.Why, row.Reason = e.Details(), e.Done()
}

// planned records the plan of an attempt. After the first search of a run, this plan is
// the result of that search.
func (b *bookkeeper) planned(e runs.Entry) {
	if e.Decision != nil && b.search {
		b.answer(e)
	}
	b.plan = e.Plan
}

// failed records the end of the run. If the run gave up because of the preceding failure,
// the end is added to the row of that failure.
func (b *bookkeeper) failed(e runs.Entry) {
	if b.stopped != "" && (b.stopped == e.Text || e.Decision != nil && b.stopped == e.Decision.Reason) {
		return // the newest row already says so
	}
	if !b.failure || e.Decision == nil {
		b.open(e, Row{Tone: Bad, What: "failed", Why: e.Text})
	}
	if e.Decision != nil {
		b.answer(e)
	}
}

func (b *bookkeeper) blame(v *memory.Verdict) {
	if v == nil {
		return
	}
	row := b.newest()
	row.Cause, row.What, row.Why = v.Cause, "out of memory: "+string(v.Cause), v.Why
}

// decision adds the decision to the row of the preceding failure. A decision about
// something else, such as growing back, gets a row of its own.
func (b *bookkeeper) decision(e runs.Entry) {
	d := e.Decision
	if d == nil {
		return
	}
	switch {
	case b.failure:
		if b.newest().Cause == "" {
			b.blame(d.Verdict)
		}
	case d.Remedy == recovery.Continue && d.Reason == "":
		b.adopt(*d)
		return
	case b.search && d.Remedy != recovery.Search: // the decision is the outcome of the search
	case d.Remedy == recovery.Grow:
		b.open(e, Row{Tone: Good, What: "memory available again"})
	case d.Remedy == recovery.Continue:
		b.open(e, Row{Tone: Info, What: "plan"})
	default:
		b.open(e, Row{Tone: Info, What: "decision"})
	}
	b.answer(e)
}

func (b *bookkeeper) answer(e runs.Entry) {
	d, row := e.Decision, b.newest()
	row.Reason, row.Hint = d.Reason, d.Hint
	if row.last = d.Remedy; d.Remedy != recovery.Continue {
		row.Remedy = string(d.Remedy)
		if b.search {
			row.Remedy = fmt.Sprintf("%s, then %s", recovery.Search, d.Remedy)
			row.Result = "" // the reason includes the result
		}
	}
	if row.Reason == "" {
		row.Reason = e.Text
	}
	if b.failure && d.Brief != "" { // the row already says what went wrong
		row.Reason = d.Brief
	}
	if d.Remedy == recovery.Stop {
		row.Tone, b.stopped = Bad, d.Reason
	}
	b.again = d.Remedy == recovery.Relaunch || d.Remedy == recovery.Exec || b.exited && d.Remedy != recovery.Stop
	b.change(row, *d)
	b.adopt(*d)
	b.spend(e)
	b.failure = false
	b.search, b.probed = d.Remedy == recovery.Search, 0
}

// change records the plan before and after a remedy that changes it.
func (b *bookkeeper) change(row *Row, d recovery.Decision) {
	switch d.Remedy {
	case recovery.Shrink, recovery.ShrinkStep, recovery.Grow, recovery.Continue:
	default:
		return
	}
	if d.Plan.Validate() != nil || b.plan != nil && *b.plan == d.Plan {
		return
	}
	if b.plan != nil && b.plan.Validate() == nil {
		row.Before = cut(*b.plan)
	}
	row.After, row.micro, row.once = cut(d.Plan), d.Plan.Largest(), d.Remedy == recovery.ShrinkStep
}

func (b *bookkeeper) adopt(d recovery.Decision) {
	if d.Remedy == recovery.Shrink || d.Remedy == recovery.Grow || d.Remedy == recovery.Continue {
		b.plan = &d.Plan
	}
}

// result records the outcome of a remedy.
func (b *bookkeeper) result(e runs.Entry) {
	if len(b.rows) == 0 || b.newest().Remedy == "" && !b.newest().starts {
		b.open(e, Row{Tone: Info, What: "remedy"})
	}
	row := b.newest()
	if !row.starts {
		row.Result = ""
	}
	row.Result = joined("; ", row.Result, e.Text)
	b.spend(e)
}

func (b *bookkeeper) probe(e runs.Entry) {
	if e.Probe == nil {
		return
	}
	b.searching(e)
	mark := ""
	if !e.Probe.Fits {
		mark = "!"
	}
	row := b.newest()
	b.probed += e.Seconds
	row.Probes = strings.TrimSpace(fmt.Sprintf("%s %d%s", row.Probes, e.Probe.N, mark))
	b.spend(e)
}

// searched ends a search. The duration in e includes the time of the search's probes,
// which has already been counted.
func (b *bookkeeper) searched(e runs.Entry) {
	b.searching(e)
	b.newest().Result = e.Text
	e.Seconds = max(0, e.Seconds-b.probed)
	b.spend(e)
}

// searching makes sure that the newest row is a search. The first search of a run has no
// row yet, because no failure caused it.
func (b *bookkeeper) searching(e runs.Entry) {
	if !b.search {
		b.open(e, Row{Tone: Info, What: "no plan yet", Remedy: string(recovery.Search), Reason: "find the largest micro-batch that fits"})
		b.search, b.probed = true, 0
	}
}

func (b *bookkeeper) open(e runs.Entry, row Row) {
	row.Time, row.Attempt, row.Step = e.Time, e.Attempt, e.Step
	if row.late = !b.body.atOnce; !b.body.journalSteps {
		row.unseen = e.InStep == 0
		row.Step, row.from = e.InStep, b.attempts[e.Attempt].From
		b.inStep[e.Attempt] = max(b.inStep[e.Attempt], e.InStep)
	}
	b.rows = append(b.rows, row)
	b.failure, b.timed, b.begun = false, false, e.Time
	b.again, b.stopped = false, ""
}

func (b *bookkeeper) newest() *Row { return &b.rows[len(b.rows)-1] }

// spend adds to the newest row the time that was lost to e. If no entry of the row gives
// a duration, it uses the time between entries, if entries are written as things happen.
func (b *bookkeeper) spend(e runs.Entry) {
	row := b.newest()
	switch {
	case e.Seconds > 0 && !b.timed:
		row.Lost, b.timed = e.Seconds, true
	case e.Seconds > 0:
		row.Lost += e.Seconds
	case !b.timed && b.body.atOnce && e.Time.After(b.begun):
		row.Lost = e.Time.Sub(b.begun).Seconds()
	}
}

// cut returns a plan in short form, without the effective batch, which never changes.
func cut(p recovery.Plan) string {
	return fmt.Sprintf("%d × %d", p.Largest(), p.Accumulation())
}

// Cuts returns the change of plan in short form: "64 × 1 → 27 × 3".
func (r Row) Cuts() string {
	switch {
	case r.After == "":
		return ""
	case r.Before == "":
		return r.After
	case r.once:
		return fmt.Sprintf("%s → %s, once", r.Before, r.After)
	}
	return fmt.Sprintf("%s → %s", r.Before, r.After)
}
