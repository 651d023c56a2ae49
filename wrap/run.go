package wrap

import (
	"cmp"
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"headroom/harness"
	"headroom/memory"
	"headroom/recovery"
	"headroom/runs"
	"headroom/wrap/checkpoints"
	"headroom/wrap/command"
	"headroom/wrap/exits"
	"headroom/wrap/profile"
)

// RunOptions are what [Run] needs from outside: how to run one life of the command, and
// which checkpoints are on disk. Tests replace them with fakes.
type RunOptions struct {
	// Live runs one life of the command, and returns when the command has ended. What it left
	// running is up to Clear and Left.
	// The context is cancelled when the user asks to stop. An error means that the command
	// could not be started or rewritten.
	Live func(context.Context, Beginning) (exits.Outcome, command.Exit, error)
	// Newest returns the newest complete checkpoint, or nil if there is none. The function
	// itself is nil if the command is not known to write checkpoints.
	Newest func() (*Saved, error)
	// Resumes says whether the command can resume from a checkpoint. A command that
	// cannot resume starts over, and loses all its progress.
	Resumes bool
	// Recover says whether the command may be changed and started again. If it is false,
	// the first life is the only one.
	Recover bool
	// Why says why Recover is false. It is reported if recovering would have helped.
	Why string
	// Check returns the reason why a life after the first could not be started, or nil. The
	// function itself is nil if that cannot be known beforehand.
	Check func(Beginning) error
	// Clear ends what the newest life left running and another life would collide with, and
	// returns what to say about that, or "". It is called when another life is to follow, and
	// may be nil.
	Clear func(context.Context) string
	// Left returns what to say about processes that the command has left running, or "". It is
	// called when the run has ended, and may be nil.
	Left func() string

	// Made returns how many optimizer steps the newest life made, or -1 if that is not known.
	// The function itself is nil if it is never known.
	Made func() int
	// Reject makes Newest return checkpoints other than the given one, from which the command
	// could not resume. Judge says later whether that was the fault of the checkpoints that
	// were rejected. Both are nil if other checkpoints are not to be tried.
	Reject func(*Saved)
	Judge  func(bad bool)

	Sleep func(ctx context.Context, d time.Duration) error // harness.Sleep, if nil
}

// Beginning is how a life of the command begins.
type Beginning struct {
	Plan      recovery.Plan
	From      *Saved   // checkpoint to resume from; nil means the beginning of the training
	Fallbacks []string // names of the profile's fallbacks that are in use
}

// Saved is a complete checkpoint that the command has written.
type Saved struct {
	Path string
	Step int       // number of optimizer steps, or in the command's own unit; 0 if the checkpoint's name has no number
	Time time.Time // when it was written

	// Micro is the micro-batch of the life that wrote the checkpoint, or 0 if it is not
	// known. Run fills it in, since a framework may resume only with the same micro-batch.
	Micro int

	// Perhaps says that the checkpoint may be another run's. The command cannot resume from
	// it, but if there is no other, it does not start over either.
	Perhaps bool

	checkpoint *checkpoints.Checkpoint
}

// after reports whether c is newer than other, which may be nil. Of two checkpoints with
// the same step, the one written later is newer: a checkpoint that is overwritten in place
// keeps its name.
func (c *Saved) after(other *Saved) bool {
	return other == nil || c.Step > other.Step || c.Step == other.Step && c.Time.After(other.Time)
}

// ExitError says that a command ended by itself with a status other than 0, for a reason
// that headroom has no remedy for.
type ExitError struct {
	Code int    // the command's exit status, which headroom should exit with
	Why  string // what was seen, in a sentence
	How  string // the beginning of that sentence, without the reasons; may be empty
	What string // that sentence without quoting what the command itself has printed; "" if it says no more than Why
	Hint string // what the user could do; may be empty

	Memory bool // memory had run out, and headroom had no remedy for this command
	Killed bool // a signal such as SIGKILL ended the command, which had no chance to say why
}

func (e *ExitError) Error() string { return e.Why }

// waitBetween is the length of one wait for other processes to free memory.
const waitBetween = time.Minute

// runner is one call of Run.
type runner struct {
	RunOptions
	s      *harness.Session
	newest *Saved          // newest checkpoint on disk after the last life
	beyond time.Duration   // how long the life that wrote newest continued afterwards
	from   *Saved          // checkpoint that the newest life resumed from; nil for the beginning
	last   command.Exit    // of the newest life
	waits  time.Duration   // how long to wait before the next life, for other processes to free memory
	lives  []time.Duration // how long each life lasted
	doubts int             // how many checkpoints in a row have been rejected
	reason string          // why the last of them was, without numbers
}

// Run starts one life of the command after another, until one finishes or nothing is left
// to try. The session decides what to do after each life, and keeps the records; Run ends
// the session. The int is the exit status of the newest life, with which the caller should
// exit.
//
// The error is an *[ExitError] if the command ended by itself and headroom has no remedy,
// and a *[harness.GaveUpError] if all remedies have been used. It wraps
// [harness.ErrInterrupted] if the user asked to stop. Errors of Live and Newest are passed
// on.
func Run(ctx context.Context, s *harness.Session, o RunOptions) (harness.Result, int, error) {
	if o.Sleep == nil {
		o.Sleep = harness.Sleep
	}
	r := &runner{RunOptions: o, s: s}
	var err error
	if r.newest, err = r.look(); err != nil {
		result, err := s.End(err)
		return result, 0, err
	}
	for {
		exit, again, err := r.attempt(ctx)
		if !again {
			if r.Left != nil {
				r.note(r.Left())
			}
			result, err := s.End(err)
			return result, exit.Code, err
		}
	}
}

// attempt runs one life of the command, and does what its end calls for. again reports
// whether another life should follow.
func (r *runner) attempt(ctx context.Context) (exit command.Exit, again bool, err error) {
	from := r.resume()
	var checkpoint *runs.Checkpoint
	if from != nil {
		checkpoint = &runs.Checkpoint{Step: from.Step, Plan: r.s.Running()}
	}
	if len(r.lives) > 0 {
		if err := r.possible(harness.Settings{Plan: r.s.Running(), Recomputing: r.s.Recomputing(), Eased: r.s.Eased()}); err != nil {
			r.stops(err.Error(), "")
			return r.last, false, err
		}
	}
	if err := r.s.Attempt(checkpoint); err != nil {
		return r.last, false, err
	}
	r.from = from
	b := Beginning{r.s.Running(), from, r.fallbacks()} // Attempt may have taken over a plan
	outcome, exit, err := r.Live(ctx, b)
	if err != nil {
		return r.last, false, err
	}
	r.last, r.lives = exit, append(r.lives, life(exit))
	if err := r.progress(); err != nil {
		return exit, false, err
	}
	r.judge(outcome)
	r.s.Note(runs.Entry{Kind: runs.KindExit, Text: exits.Describe(outcome, exit), Seconds: exit.Seconds})
	if again, err = r.follow(ctx, outcome, exit); again {
		again, err = r.clear(ctx)
	}
	if again && r.s.Running() == b.Plan && len(r.fallbacks()) == len(b.Fallbacks) {
		again, err = r.pause(ctx)
	}
	return exit, again, err
}

// note records what happened to processes that a life left running, if anything did.
func (r *runner) note(text string) {
	if text != "" {
		r.s.Note(runs.Entry{Kind: runs.KindLeft, Text: text})
	}
}

// clear makes room for the next life: it ends what the newest life left in its way, and then
// waits, if that was decided.
func (r *runner) clear(ctx context.Context) (again bool, err error) {
	if r.Clear != nil {
		if text := r.Clear(ctx); text != "" {
			r.note(text)
			if err := r.progress(); err != nil { // a process that has been ended may have been writing a checkpoint
				return false, err
			}
		}
	}
	wait := r.waits
	r.waits = 0
	if wait == 0 {
		return true, nil
	}
	if err := r.Sleep(ctx, wait); err != nil {
		return false, fmt.Errorf("stopped while waiting for other processes: %w", err)
	}
	return true, nil
}

// fallbacks returns the names of the fallbacks that the session has used so far.
func (r *runner) fallbacks() []string { return fallbacksOf(r.s.Eased(), r.s.Recomputing()) }

func fallbacksOf(eased []string, recomputing bool) []string {
	all := slices.Clone(eased)
	if recomputing {
		all = append(all, profile.Recompute)
	}
	return all
}

// resume returns the checkpoint that the next life would resume from, or nil if it would
// start from the beginning.
func (r *runner) resume() *Saved {
	if !r.Resumes {
		return nil
	}
	return r.newest
}

// possible returns the reason why no life could begin with the settings s, or nil if one
// could.
func (r *runner) possible(s harness.Settings) error {
	if r.Check == nil {
		return nil
	}
	return r.Check(Beginning{s.Plan, r.resume(), fallbacksOf(s.Eased, s.Recomputing)})
}

// pause waits before the next start of an unchanged command that ended soon after it was
// started, and gives up if that keeps happening. After a change of the plan no pause is
// needed, since plans can change only a few times.
func (r *runner) pause(ctx context.Context) (again bool, err error) {
	wait, again := Pause(r.lives)
	if !again {
		return false, &ExitError{Code: r.last.Code, Why: fmt.Sprintf("it ended within %v, %d times in a row", YoungDeath, YoungDeaths)}
	}
	if wait == 0 {
		return true, nil
	}
	if err := r.Sleep(ctx, wait); err != nil {
		return false, fmt.Errorf("stopped before the next start: %w", err)
	}
	return true, nil
}

func (r *runner) look() (*Saved, error) {
	if r.Newest == nil {
		return nil, nil
	}
	return r.Newest()
}

// progress looks for checkpoints after a life. It tells the session about a new one, which
// resets the session's limits on repeated failures.
func (r *runner) progress() error {
	known := r.newest
	newest, err := r.look()
	if r.newest = newest; err != nil || newest == nil || newest.Perhaps {
		return err
	}
	switch {
	case newest.after(known):
		newest.Micro, r.beyond = r.s.Running().Largest(), 0
		if !newest.Time.IsZero() {
			r.beyond = max(0, r.last.Began.Add(life(r.last)).Sub(newest.Time)) // below 0 if the file system's clock is ahead
		}
		return r.s.Reached(newest.Step, newest.Path)
	case newest.Path == known.Path:
		newest.Micro = known.Micro
	}
	return nil
}

// follow does what the end of a life calls for. again reports whether another life should
// follow.
func (r *runner) follow(ctx context.Context, o exits.Outcome, exit command.Exit) (again bool, err error) {
	switch {
	case o.Kind == exits.Done:
		return false, nil
	case o.Kind == exits.Stopped || ctx.Err() != nil:
		return false, errInterrupted
	}
	o.Hopeless = r.hopeless(o)
	switch {
	case r.Recover && o.OutOfMemory() && o.Hopeless == "":
		return r.recover(ctx, o, exit)
	case r.Recover && o.Kind == exits.Leaking && r.progressed(): // without a new checkpoint there is nothing to start from
		_, err := r.s.Handle(recovery.Event{Left: &recovery.Left{Why: strings.Join(o.Reasons, "; "), From: r.newest.Step}}, life(exit))
		return err == nil, err
	case r.Recover && (o.Kind == exits.DeviceGone || o.Kind == exits.Hung):
		return r.anew(o, exit)
	}
	if again, err := r.olderOne(o, exit); again || err != nil {
		return again, err
	}
	return false, r.failed(o, exit)
}

// hopeless says why no smaller batch will help after a life, or returns "" if one may.
func (r *runner) hopeless(o exits.Outcome) string {
	if !o.Kind.Memory() {
		return o.Hopeless
	}
	if o.Hopeless = o.HopelessAt(r.s.Running()); r.mayPass(o) {
		return ""
	}
	return o.Hopeless
}

// anew asks the session whether another life may start after one whose process could not go on.
func (r *runner) anew(o exits.Outcome, exit command.Exit) (again bool, err error) {
	d, err := r.s.Handle(recovery.Event{Gone: &recovery.DeviceGone{Why: exits.Describe(o, exit)}}, life(exit))
	if err != nil || d.Remedy == recovery.Exec {
		return err == nil, err
	}
	return false, &ExitError{Code: exit.Code, Why: d.Reason}
}

// failed returns the error for a life after which nothing is left to try, and notes a lack of
// memory in the journal.
func (r *runner) failed(o exits.Outcome, exit command.Exit) error {
	e := &ExitError{Code: exit.Code, Why: exits.Describe(o, exit), How: exits.Ending(o, exit), What: exits.InShort(o, exit), Hint: cmp.Or(o.Hopeless, o.Hint, r.resumed(o)), Memory: o.Kind.Memory(), Killed: exit.Signal != 0 && !slices.Contains(spoken, exit.Signal)}
	var verdict memory.Verdict
	if o.OutOfMemory() && o.Evidence != nil {
		verdict = memory.Diagnose(*o.Evidence)
	}
	if e.Memory && e.Hint == "" && r.Why != "" {
		e.Hint = "if what was asked for depends on the batch, a smaller micro-batch would help, but headroom cannot change the command: "
		if verdict.Cause == memory.Batch {
			e.Hint = "headroom could have continued with a smaller micro-batch if it had been able to change the command: "
		}
		e.Hint += r.Why
	}
	if verdict.Cause != "" {
		failure := o.Evidence.Failure.Measured()
		r.s.Note(runs.Entry{Kind: runs.KindOOM, OOM: &failure, Verdict: &verdict, Text: failure.Error(), Seconds: r.lost().Seconds(), Final: true})
		r.stops(e.Why, e.Hint)
	}
	return e
}

// spoken are the signals with which people and programs usually end a command on purpose.
// For a command that one of them ended, ExitError.Killed is false.
var spoken = []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE}

// stops records in the journal that nothing more will be tried. It does not tell the
// user, which is left to the caller of Run.
func (r *runner) stops(why, hint string) {
	d := recovery.Decision{Remedy: recovery.Stop, Plan: r.s.Running(), Reason: why, Hint: hint}
	r.s.Note(runs.Entry{Kind: runs.KindDecision, Text: why, Decision: &d})
}

// errInterrupted wraps [harness.ErrInterrupted] with a shorter text, which does not promise
// that the command resumes when it is run again.
var errInterrupted error = interruptedError{}

type interruptedError struct{}

func (interruptedError) Error() string { return "interrupted" }
func (interruptedError) Unwrap() error { return harness.ErrInterrupted }

// resumed returns a hint for a command that failed for a reason other than memory, after
// headroom had made it resume from a checkpoint and before it wrote a newer one. It
// returns "" for any other end.
func (r *runner) resumed(o exits.Outcome) string {
	if o.Kind != exits.Failed || r.from == nil || r.progressed() {
		return ""
	}
	if r.doubts > 0 {
		return "the command failed after each of the checkpoints that it resumed from, so they are probably not the reason"
	}
	return fmt.Sprintf("the command had resumed from %s and written no newer checkpoint; if that checkpoint cannot be loaded, move it elsewhere and start again from the one before", r.from.Path)
}

const (
	// mostDoubts is how many checkpoints in a row may be rejected.
	mostDoubts = 3
	// longestLoad is how long a life may have taken to fail without a step so that the
	// checkpoint may be the reason.
	longestLoad = 30 * time.Minute
)

// numbers matches what differs between two failures for the same reason.
var numbers = regexp.MustCompile(`\d+`)

// olderOne rejects the checkpoint that the newest life resumed from, if that life failed
// before it made a step. again reports whether there is an older checkpoint to resume from
// instead. Nothing else about the command changes, and each checkpoint is tried once.
func (r *runner) olderOne(o exits.Outcome, exit command.Exit) (again bool, err error) {
	if o.Kind != exits.Failed || r.Reject == nil || !r.Recover || r.from == nil || r.progressed() || exit.Signal != 0 || r.doubts == mostDoubts || !r.noStep(exit) {
		return false, nil
	}
	reason := numbers.ReplaceAllString(strings.Join(o.Reasons, "; "), "#")
	if r.doubts > 0 && reason == r.reason {
		return false, nil // the same with two checkpoints: then neither of them is the reason
	}
	bad := r.from
	r.reason = reason
	r.Reject(bad)
	r.doubts++
	older, err := r.look()
	if err != nil || older == nil {
		return false, err
	}
	if older.Micro == 0 {
		older.Micro = bad.Micro
	}
	r.newest = older
	r.s.Note(runs.Entry{Kind: runs.KindWarning, Text: fmt.Sprintf("%s; before its first step after it had resumed from %s, which perhaps cannot be loaded: it resumes from %s", exits.Describe(o, exit), bad.Path, older.Path)})
	return true, nil
}

// noStep reports whether the newest life seems to have ended before its first step.
func (r *runner) noStep(exit command.Exit) bool {
	if r.Made != nil {
		if made := r.Made(); made >= 0 {
			return made == 0 && life(exit) < longestLoad
		}
	}
	return life(exit) < YoungDeath
}

// judge decides about the checkpoints that have been rejected. If the newest life, which
// resumed from an older one, made a step, they were the reason why earlier lives failed. If
// the run ends first, that remains unknown, and a later process tries them again.
func (r *runner) judge(o exits.Outcome) {
	if r.doubts > 0 && (o.Kind == exits.Done || r.progressed() || r.Made != nil && r.Made() > 0) {
		r.Judge(true)
		r.doubts = 0
	}
}

// mayPass reports whether memory that ran out during loading may suffice next time. That
// is so if other processes held some of it, or if a checkpoint was being loaded. The
// batch size has no effect on loading.
func (r *runner) mayPass(o exits.Outcome) bool {
	return o.Evidence != nil && o.Evidence.Failure.Phase == memory.PhaseLoad &&
		(r.from != nil || memory.Diagnose(*o.Evidence).Cause == memory.Foreign)
}

// recover asks the session what to do about a life that ran out of memory. If the answer
// is to wait, it sets r.waits.
func (r *runner) recover(ctx context.Context, o exits.Outcome, exit command.Exit) (again bool, err error) {
	evidence := *o.Evidence
	evidence.Host = o.Kind != exits.OutOfMemory
	if o.Gradless && evidence.Failure.Phase.SizedByMicro() && r.s.Running().Eval > 1 {
		evidence.Failure.Phase = memory.PhaseEval // of the two batches, its size is the one that changes no training
	}
	evidence.Resuming = r.resuming(evidence.Failure.Phase, life(exit))
	e := recovery.Event{OOM: &evidence}
	if evidence.Failure.Phase == memory.PhaseLoad {
		e = recovery.Event{Load: &evidence}
	} else if evidence.Failure.Micro == 0 && evidence.Failure.Phase.SizedByMicro() {
		evidence.Failure.Micro = r.s.Running().Largest()
	}
	d, err := r.s.HandleIf(e, r.lost(), r.possible)
	if err != nil {
		return false, err
	}
	if d.Remedy == recovery.Wait {
		r.waits = waitBetween
	}
	return true, nil
}

// resuming reports whether the newest life may have run out of memory because it resumed
// from a checkpoint. Its micro-batch must be no larger than that of the life that wrote
// the checkpoint. It must have failed either while loading or early in its steps. Early
// means that it had lived for less time than the earlier life kept running after it wrote
// the checkpoint.
func (r *runner) resuming(phase memory.Phase, lived time.Duration) bool {
	if r.from == nil || r.progressed() || r.s.Running().Largest() > r.from.Micro {
		return false
	}
	return phase == memory.PhaseLoad || phase.SizedByMicro() && lived+checkpoints.Settled < r.beyond
}

// progressed reports whether the newest life wrote a checkpoint that is newer than the one
// that it resumed from.
func (r *runner) progressed() bool {
	return r.newest != nil && r.newest.after(r.from)
}

// lost returns how much of the newest life's work is lost: the time since its newest
// checkpoint if it wrote one and the command can resume, or else all of its time. It
// returns 0 if that is not known.
func (r *runner) lost() time.Duration {
	switch {
	case !r.Recover: // it is not known where such a command continues if the user starts it again
		return 0
	case r.Resumes && r.progressed():
		return r.beyond
	}
	return life(r.last)
}

func life(exit command.Exit) time.Duration { return time.Duration(exit.Seconds * float64(time.Second)) }
