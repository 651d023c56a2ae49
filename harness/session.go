package harness

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"go.uber.org/zap"

	"headroom/memory"
	"headroom/recovery"
	"headroom/runs"
)

// SessionOptions describe the run whose records a [Session] keeps.
type SessionOptions struct {
	Steps  int           // optimizer steps of the whole run; 0 if not known, as for a command
	Plan   recovery.Plan // the plan that the user asked for; Micro 0 searches for the largest that fits
	Policy recovery.Policy

	// Precision is the number format in which training computes, such as "bf16"; "" means
	// float32. The journal entry of an attempt names it. The need for memory depends on it,
	// so what was learned with another precision is forgotten.
	Precision string

	Version string // version of headroom, for the journal

	Found *runs.Found // what a trial before the run has found; nil if there was none in this process

	Scrub func(string) string // removes secrets from a text that is about to be recorded; nil if there are none

	// OnEntry is called with every journal entry, in the journal's order, and OnStep with every
	// finished step. Each may be nil. Neither runs while another does, and neither may call
	// the session: it is locked.
	OnEntry func(runs.Entry)
	OnStep  func(runs.StepReport)

	Log *zap.Logger      // nil logs nothing
	Now func() time.Time // nil means time.Now
}

// complete fills in the defaults, or returns an error that names everything wrong with the
// options.
func (o *SessionOptions) complete() error {
	var errs []error
	if o.Steps < 0 {
		errs = append(errs, fmt.Errorf("steps %d: must be at least 1, or 0 if not known", o.Steps))
	}
	if o.Plan.Micro < 0 {
		errs = append(errs, fmt.Errorf("micro-batch %d: must be at least 1, or 0 to search for the largest that fits", o.Plan.Micro))
	} else {
		errs = append(errs, o.Plan.WithMicro(max(1, o.Plan.Micro)).Validate())
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("run: %w", err)
	}
	if o.Log == nil {
		o.Log = zap.NewNop()
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return nil
}

// Session keeps a run's records: evidence, decisions, history, journal, metrics, status
// and what was learned. It runs nothing. The body of the job (see [recovery.Able]) runs
// the steps: it calls [Session.Attempt], reports what happens by calling [Session.Step]
// and [Session.Handle], carries out the decisions that these return, and calls
// [Session.End]. [Journal] is the part of a session for those who decide nothing.
//
// A Session locks itself, so any goroutine may call any method at any time. Calls that
// depend on each other's order, which are those between Attempt and End that report
// steps, failures and checkpoints, belong to the one goroutine of the body.
//
// What a Session cannot write, it keeps in memory, reports once and tries to write again:
// a full disk does not end training.
type Session struct {
	o       SessionOptions // not changed after Begin
	f       *runs.Folder
	started time.Time
	host    string

	mu sync.Mutex // guards what follows

	policy  recovery.Policy // o.Policy, with what the body can carry out at the moment
	log     *zap.Logger     // the attempt's log, once there is an attempt
	logFile *os.File

	history recovery.History
	seen    Evidence
	kept    recovery.Learned // what learned.json tells a later process
	pieces  int              // rows that a worker may run at once; also kept for a later process
	found   *runs.Found      // likewise kept
	made    int              // most optimizer steps that a process has made in this attempt, as a worker saw it
	result  Result
	planned bool // whether history has been started

	position
	failed place // where memory last ran out

	status      runs.Status
	interval    interval // progress since the last status was written
	journalDown bool     // the journal cannot be written, and this has been reported
	statusErr   error    // why the last status could not be written; nil if it was
}

// position is how far a run has got.
type position struct {
	attempt int   // number of the attempt, counted over all processes of the run
	step    int   // optimizer steps finished
	samples int64 // samples in those steps
	saved   int   // step of the newest whole checkpoint; -1 if there is none
}

// place is where memory ran out: the attempt, and the number of steps finished by then.
type place struct{ attempt, step int }

// interval measures the speed between two statuses.
type interval struct {
	from    time.Time
	samples int
	seconds float64
}

// Result is the outcome of a run. If the run ended with an error, Result shows how far it
// got.
type Result struct {
	Steps    int // optimizer steps finished in the whole run
	Resumed  int // the step that the session started from
	Attempts int // attempts in this session
	Failures int // out-of-memory failures in this session that were answered with a remedy, counted by [runs.Entry.Failed]
	InPlace  int // those of Failures that a worker survived inside its process
	// AllFailures counts the out-of-memory failures of the whole run, in all its processes,
	// as [runs.Status] does. It includes the failure that ended the run.
	AllFailures int
	DeviceGone  int             // how many times the device was lost in the whole run
	Plan        recovery.Plan   // the plan in force at the end
	Last        runs.StepReport // the newest step of this session
	Finished    bool            // whether all steps of the run have been completed
}

// GaveUpError is returned when no remedy was left. Decision.Verdict gives the cause, which is
// memory.Unknown if it could not be found.
type GaveUpError struct {
	Decision recovery.Decision
	Step     int // the step that could not be completed
}

func (e *GaveUpError) Error() string { return e.Decision.Reason }

// Begin starts a session of the run in folder f. The caller keeps f open until the session
// has ended, and closes it.
func Begin(f *runs.Folder, o SessionOptions) (*Session, error) {
	if f == nil {
		return nil, errors.New("run: a folder is needed")
	}
	if err := o.complete(); err != nil {
		return nil, err
	}
	host, _ := os.Hostname() // only shown to people, so it may be empty
	now := o.Now()
	s := &Session{o: o, policy: o.Policy, f: f, host: host, started: now, log: o.Log, seen: NewEvidence(memory.Stats{})}
	s.saved, s.attempt = -1, f.Tally().Attempts
	s.interval.from = now
	s.status, _ = runs.ReadStatus(f.Dir()) // what an earlier process knew; there may be no such status
	s.status.Command, s.status.Socket = nil, ""
	s.result.Plan = o.Plan
	return s, nil
}

// Attempt begins an attempt from a checkpoint, or from the beginning if from is nil. It sets
// counters and metrics to the state at the checkpoint, and in the session's first attempt
// also the history. A checkpoint with a different effective batch gives a *[MismatchError].
func (s *Session) Attempt(from *runs.Checkpoint) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.attempt++
	s.made = 0
	s.openLog()
	for _, text := range s.f.TakeRepairs() {
		s.log.Warn(text)
	}
	if err := s.goTo(from); err != nil {
		return err
	}
	tally := s.f.Tally()
	if s.result.Attempts == 0 {
		s.result.Resumed = s.step
		if tally.Attempts == 0 {
			s.note(runs.Entry{Kind: runs.KindRun, Text: "a run" + s.length() + " starts"})
		}
	}
	if from == nil && tally.Checkpoint >= 0 {
		s.note(runs.Entry{Kind: runs.KindMissing, Text: fmt.Sprintf("the journal says that a checkpoint of step %d was written, but no checkpoint is left: the run starts over", tally.Checkpoint)})
	}
	s.result.Attempts++
	s.status.From, s.status.Command, s.status.Socket = s.step, nil, ""
	if !s.planned {
		s.beginHistory(from)
	}
	s.history.Finished = s.step
	s.note(runs.Entry{Kind: runs.KindAttempt, Text: s.startText(from), Version: s.o.Version})
	s.setStatus(runs.StateRunning, "")
	s.noteRemovals()
	if err := s.f.CutMetrics(s.step); err != nil {
		return fmt.Errorf("resume from step %d: truncate metrics.jsonl: %w", s.step, err)
	}
	return nil
}

// goTo sets the counters to the state at a checkpoint, or at the beginning if from is nil.
func (s *Session) goTo(from *runs.Checkpoint) error {
	s.step, s.samples, s.saved = 0, 0, -1
	if from == nil {
		return nil
	}
	s.step, s.samples, s.saved = from.Step, from.Samples, from.Step
	if from.Plan.Effective != s.o.Plan.Effective {
		return fmt.Errorf("resume from step %d: %w", from.Step, &MismatchError{Key: "effective batch",
			Have: fmt.Sprint(s.o.Plan.Effective), Want: fmt.Sprint(from.Plan.Effective)})
	}
	return nil
}

// startText says where the attempt starts.
func (s *Session) startText(from *runs.Checkpoint) string {
	text := fmt.Sprintf("attempt %d starts from step %d", s.attempt, s.step)
	if s.o.Steps == 0 && s.step == 0 { // a command itself decides where it starts
		text = fmt.Sprintf("attempt %d starts", s.attempt)
	}
	if from != nil && from.Step == 0 {
		text = fmt.Sprintf("attempt %d continues from a checkpoint whose step is unknown", s.attempt)
	}
	if s.o.Steps > 0 {
		text += fmt.Sprintf(" of %d", s.o.Steps)
	}
	if s.o.Precision != "" {
		text += ", in " + s.o.Precision
	}
	return text
}

// already takes over the result of a run of which from is the last checkpoint, so that
// nothing is left to do.
func (s *Session) already(from *runs.Checkpoint) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.step, s.saved, s.result.Resumed = from.Step, from.Step, from.Step
	s.result.Plan = from.Plan
}

// length returns the length of the run in words, as far as it is known.
func (s *Session) length() string {
	if s.o.Steps == 0 && s.o.Plan.Effective <= 1 { // the run of a command whose batch is not known
		return ""
	}
	if s.o.Steps == 0 {
		return fmt.Sprintf(" with an effective batch of %d", s.o.Plan.Effective)
	}
	return fmt.Sprintf(" of %d steps of %d samples", s.o.Steps, s.o.Plan.Effective)
}

// beginHistory starts the history with what earlier processes learned. It takes this from
// learned.json if that is newer than the checkpoint, otherwise from the checkpoint.
func (s *Session) beginHistory(from *runs.Checkpoint) {
	s.planned, s.history = true, recovery.NewHistory(s.o.Plan)
	learned, err := s.f.Learned()
	if err != nil {
		s.log.Warn("learned.json cannot be read: what earlier searches found is taken from the newest checkpoint, if there is one", zap.Error(err))
	}
	switch {
	case learned != nil && learned.Since(from):
		s.history = s.history.Resume(learned.Learned, s.o.Precision)
	case from != nil:
		s.history = s.history.Resume(from.Learned, s.o.Precision)
	}
	s.found = s.o.Found
	if learned != nil {
		s.pieces, s.found = learned.Pieces, cmp.Or(s.found, learned.Found)
	}
	s.kept = s.history.Learned(s.o.Plan, s.o.Precision)
	if s.o.Found != nil {
		s.writeLearned()
	}
}

// Told takes over the settings of the next attempt, and its number, from whoever decides for several
// sessions that run one job together. This session decides nothing itself. who says who that is.
func (s *Session) Told(attempt int, next Settings, who string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.planned {
		s.beginHistory(nil)
	}
	s.attempt = attempt - 1
	before := s.history.Running()
	learned := recovery.Learned{Asked: s.o.Plan.Micro, Micro: next.Plan.Micro, Eval: next.Plan.Eval, Recompute: next.Recomputing, Eased: len(next.Eased)}
	s.history = recovery.NewHistory(s.o.Plan).Resume(learned, "")
	if plan := s.history.Running(); plan != before && s.result.Attempts > 0 {
		s.note(runs.Entry{Kind: runs.KindDecision, Text: who + " has decided: " + plan.String(), Plan: &plan})
	}
}

// Look records the memory of the device at the start of an attempt, and what the body can
// carry out there.
func (s *Session) Look(now memory.Stats, able recovery.Able) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen = NewEvidence(now)
	s.status.Capacity = now.Capacity
	s.policy.Able = able
	if plan := s.history.Plan; plan.Micro > 0 {
		s.note(runs.Entry{Kind: runs.KindPlan, Text: plan.String(), Plan: &plan})
	}
}

// baseline returns the memory of the device at the start of the attempt.
func (s *Session) baseline() memory.Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.seen.baseline
}

// Step records a finished step and returns the decision that follows from it.
func (s *Session) Step(r runs.StepReport) (recovery.Decision, error) {
	if err := s.finished(r); err != nil {
		return recovery.Decision{}, err
	}
	d, err := s.Handle(recovery.Event{Step: &recovery.Progress{Step: r.Step, Memory: r.Memory}}, 0)
	if err != nil {
		return d, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return d, s.tick()
}

// finished adds a step to the records.
func (s *Session) finished(r runs.StepReport) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.f.AddStep(r); err != nil {
		return fmt.Errorf("step %d: metrics: %w", r.Step, err)
	}
	s.seen.Add(s.history.Running(), r.Memory)
	s.step++
	s.samples += int64(r.Samples)
	s.result.Last = r
	s.interval.samples += r.Samples
	s.interval.seconds += r.Seconds
	if s.o.OnStep != nil {
		s.o.OnStep(r)
	}
	return nil
}

// Reached records a newer complete checkpoint as a sign of progress, for a body that does not
// count its steps. step is 0 if the step of the checkpoint is not known.
func (s *Session) Reached(step int, path string) error {
	text := fmt.Sprintf("checkpoint of step %d", step)
	if step == 0 {
		text = "checkpoint whose step is unknown"
	}
	s.mu.Lock()
	s.step, s.saved = step, step
	s.note(runs.Entry{Kind: runs.KindCheckpoint, Text: text, Path: path})
	s.mu.Unlock()
	_, err := s.Handle(recovery.Event{Step: &recovery.Progress{Step: step}}, 0)
	return err
}

// Running returns the plan for what runs next. Before the first attempt, that is the plan
// that was asked for.
func (s *Session) Running() recovery.Plan {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.planned {
		return s.o.Plan
	}
	return s.history.Running()
}

// Recomputing reports whether activations are to be recomputed.
func (s *Session) Recomputing() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.history.Recomputing()
}

// Settings are what a body runs with: the plan, whether activations are recomputed, and
// the ways to save host memory that are in force, the first entries of [recovery.Policy].Host.
type Settings struct {
	Plan        recovery.Plan
	Recomputing bool
	Eased       []string
}

// Settings returns the settings for what runs next.
func (s *Session) Settings() Settings {
	plan := s.Running()
	s.mu.Lock()
	defer s.mu.Unlock()
	return Settings{plan, s.history.Recomputing(), s.eased(s.history)}
}

func (s *Session) eased(h recovery.History) []string {
	return s.o.Policy.Host[:min(h.Eased(), len(s.o.Policy.Host))]
}

// Number returns the number of the attempt, counted over all processes of the run.
func (s *Session) Number() int { return s.at().attempt }

// at returns how far the run has got.
func (s *Session) at() position {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.position
}

// Handle asks [recovery.Decide] about an event, and records the event and the decision.
// The caller carries the decision out. took is how much time the event cost, or 0 if that
// does not matter.
//
// For an out-of-memory failure the caller fills in Failure and what the session cannot
// have seen. For a lost device it fills in Why and Ending. The session adds the rest of
// the evidence from its records.
//
// A decision to stop because of memory is returned as a *[GaveUpError].
func (s *Session) Handle(e recovery.Event, took time.Duration) (recovery.Decision, error) {
	return s.HandleIf(e, took, func(Settings) error { return nil })
}

// HandleIf is [Session.Handle] for a body that cannot carry out every decision. It calls
// possible with the settings that would follow from the decision. If possible returns an
// error, which says why the body cannot run with them, the decision is to stop for that
// reason. No setting changes then, and HandleIf returns that error. The session is not locked
// while possible runs, so possible may call it.
func (s *Session) HandleIf(e recovery.Event, took time.Duration, possible func(Settings) error) (recovery.Decision, error) {
	e, d, next := s.consider(e)
	var refused error
	if d.Remedy != recovery.Continue && d.Remedy != recovery.Stop {
		refused = possible(next)
	}
	return s.settle(e, d, refused, took)
}

// consider returns e with the session's evidence, the decision about it, and the settings that
// would follow from that decision.
func (s *Session) consider(e recovery.Event) (recovery.Event, recovery.Decision, Settings) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e.Gone != nil { // comes before Decide, because the evidence includes whether this can be written
		s.note(runs.Entry{Kind: runs.KindGone, Text: e.Gone.Why})
	}
	e = s.complete(e)
	d := recovery.Decide(s.policy, s.history, e)
	next := s.history.Apply(e, d)
	return e, d, Settings{next.Running(), next.Recomputing(), s.eased(next)}
}

// settle records e and what was decided about it: d, or to stop if the body refused d.
func (s *Session) settle(e recovery.Event, d recovery.Decision, refused error, took time.Duration) (recovery.Decision, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if refused != nil {
		d = recovery.Decision{Remedy: recovery.Stop, Plan: s.history.Running(), Verdict: d.Verdict, Reason: refused.Error()}
	}
	s.recordFailure(e, d, took)
	s.history = s.history.Apply(e, d)
	s.keepLearned()
	switch {
	case e.Gone != nil && d.Remedy == recovery.Stop: // End records this
	case d.Remedy == recovery.Continue:
		if d.Reason != "" {
			s.note(runs.Entry{Kind: runs.KindPlan, Text: d.Reason, Plan: &d.Plan, Decision: &d})
		}
	default:
		s.status.Reason = d.Reason
		s.note(runs.Entry{Kind: runs.KindDecision, Text: d.Reason, Plan: &d.Plan, Verdict: d.Verdict, Decision: &d})
		if refused != nil {
			return d, refused
		}
		if d.Remedy == recovery.Stop {
			return d, &GaveUpError{Decision: d, Step: s.step + 1}
		}
	}
	return d, nil
}

// complete returns e with evidence added from the session's records.
func (s *Session) complete(e recovery.Event) recovery.Event {
	least := s.policy.Least()
	switch {
	case e.OOM != nil:
		found := s.seen.Of(e.OOM.Failure, s.history.Running(), least)
		found.Host, found.Resuming = e.OOM.Host, e.OOM.Resuming
		if len(e.OOM.Boundary) > 0 { // the caller has seen more of the attempt than the session
			found.Boundary, found.Every = e.OOM.Boundary, e.OOM.Every
		}
		e.OOM = &found
	case e.Load != nil:
		found := *e.Load
		found.Failure.Phase, found.MinMicro = memory.PhaseLoad, least
		e.Load = &found
	case e.Gone != nil:
		gone, tally := *e.Gone, s.f.Tally()
		gone.Reported, gone.Before, gone.From, gone.JournalFails = tally.Faults, tally.GoneSince-1, max(0, s.saved), s.journalDown
		e.Gone = &gone
	}
	return e
}

// recordFailure records an out-of-memory failure and its cause.
func (s *Session) recordFailure(e recovery.Event, d recovery.Decision, took time.Duration) {
	var failure memory.OutOfMemoryError
	entry := runs.Entry{Kind: runs.KindOOM, OOM: &failure, Verdict: d.Verdict, Seconds: took.Seconds()}
	switch {
	case e.OOM != nil:
		plan := s.history.Running()
		failure, entry.Plan = e.OOM.Failure.Measured(), &plan
		entry.Text = s.where() + failure.Error()
	case e.Load != nil:
		failure = e.Load.Failure.Measured()
		entry.Text = s.where() + failure.Error()
		if s.o.Steps > 0 {
			entry.Text = "before " + entry.Text
		}
	default:
		return
	}
	s.status.Verdict = d.Verdict
	at := place{s.attempt, s.step}
	entry.Repeated = at == s.failed
	s.failed = at
	s.note(entry)
	if d.Remedy != recovery.Stop && entry.Failed() {
		s.result.Failures++
	}
}

// where returns the step that failed, in words, or "" if it is not known.
func (s *Session) where() string {
	if s.o.Steps == 0 {
		return ""
	}
	return fmt.Sprintf("step %d: ", s.step+1)
}

// keepLearned writes learned.json if the plan has changed for good and a later process may
// begin with it.
func (s *Session) keepLearned() {
	now := s.history.Learned(s.o.Plan, s.o.Precision)
	if !s.history.Settled() || now.Micro == s.kept.Micro && now.Recompute == s.kept.Recompute && now.Eased == s.kept.Eased && now.Eval == s.kept.Eval {
		return
	}
	s.kept = now
	s.writeLearned()
}

func (s *Session) writeLearned() {
	if err := s.f.SetLearned(runs.Learned{Attempt: s.attempt, Step: s.step, Learned: s.kept, Pieces: s.pieces, Found: s.found}); err != nil {
		s.log.Warn("what was learned about memory will not be saved until the next checkpoint", zap.Error(err))
	}
}
