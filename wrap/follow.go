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
)

// follow does what the end of an attempt calls for. again reports whether another attempt should
// follow.
func (r *runner) follow(ctx context.Context, o exits.Outcome, exit command.Exit) (again bool, err error) {
	switch {
	case o.Kind == exits.Done, r.shutDown(o, exit):
		return false, nil
	case o.Kind == exits.Stopped || ctx.Err() != nil:
		return false, &InterruptedError{exit.Signal}
	}
	o.Hopeless = r.hopeless(o)
	switch {
	case r.recovers && o.OutOfMemory() && o.Hopeless == "":
		return r.recover(ctx, o, exit)
	case r.recovers && o.Kind == exits.Leaking && r.progressed(): // without a new checkpoint there is nothing to start from
		_, err := r.s.Handle(recovery.Event{Left: &recovery.Left{Why: strings.Join(o.Reasons, "; "), From: r.saved.Step}}, lasted(exit))
		return err == nil, err
	case r.recovers && slices.Contains(passing, o.Kind):
		return r.anew(o, exit)
	}
	if again, err := r.olderOne(o, exit); again || err != nil {
		return again, err
	}
	return false, r.failed(o, exit)
}

// shutDown reports whether a Jupyter kernel was asked to end: Jupyter asks by a message, and then by SIGTERM.
func (r *runner) shutDown(o exits.Outcome, exit command.Exit) bool {
	return r.serves && o.Kind == exits.Stopped && (exit.Code == 0 || exit.Signal == syscall.SIGTERM)
}

// hopeless says why no smaller batch will help after an attempt, or returns "" if one may.
func (r *runner) hopeless(o exits.Outcome) string {
	if !o.Kind.Memory() {
		return o.Hopeless
	}
	if o.Hopeless = o.HopelessAt(r.s.Running()); r.mayPass(o) {
		return ""
	}
	return o.Hopeless
}

// passing are the ends after which the same command may well go on.
var passing = []exits.Kind{exits.DeviceGone, exits.Hung}

// anew asks the session whether another attempt may start after one whose process could not go on.
func (r *runner) anew(o exits.Outcome, exit command.Exit) (again bool, err error) {
	d, err := r.s.Handle(recovery.Event{Gone: &recovery.DeviceGone{Why: exits.Describe(o, exit)}}, lasted(exit))
	if err != nil || d.Remedy == recovery.Exec {
		return err == nil, err
	}
	return false, &ExitError{Code: exit.Code, Why: d.Reason}
}

// failed returns the error for an attempt after which nothing is left to try, and notes a lack of
// memory in the journal.
func (r *runner) failed(o exits.Outcome, exit command.Exit) error {
	e := &ExitError{Code: exit.Code, Why: exits.Describe(o, exit), How: exits.Ending(o, exit), What: exits.InShort(o, exit), Hint: cmp.Or(o.Hopeless, o.Hint, r.resumed(o)), Memory: o.Kind.Memory(), Tail: exit.Tail, Killed: exit.Signal != 0 && !slices.Contains(spoken, exit.Signal)}
	var verdict memory.Verdict
	if o.OutOfMemory() && o.Evidence != nil {
		verdict = memory.Diagnose(*o.Evidence)
	}
	if e.Memory && e.Hint == "" && r.why != "" {
		e.Hint = "if what was asked for depends on the batch, a smaller micro-batch would help, but headroom cannot change the command: "
		if verdict.Cause == memory.Batch {
			e.Hint = "headroom could have continued with a smaller micro-batch if it had been able to change the command: "
		}
		e.Hint += r.why
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

// InterruptedError wraps [harness.ErrInterrupted] with a shorter text, which does not promise
// that the command resumes when it is run again.
type InterruptedError struct {
	Signal syscall.Signal // of which the command died; 0 if it exited by itself
}

func (*InterruptedError) Error() string { return "interrupted" }

func (*InterruptedError) Unwrap() error { return harness.ErrInterrupted }

// Unproven implements [harness.Unproven].
func (e *UnprovenError) Unproven() []string { return e.Prove }

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
	// longestLoad is how long an attempt may have taken to fail without a step so that the
	// checkpoint may be the reason.
	longestLoad = 30 * time.Minute
)

// numbers matches what differs between two failures for the same reason.
var numbers = regexp.MustCompile(`\d+`)

// olderOne rejects the checkpoint that the newest attempt resumed from, if that attempt failed
// before it made a step. again reports whether there is an older checkpoint to resume from
// instead. Nothing else about the command changes, and each checkpoint is tried once.
func (r *runner) olderOne(o exits.Outcome, exit command.Exit) (again bool, err error) {
	if o.Kind != exits.Failed || !r.chooses || !r.recovers || r.from == nil || r.progressed() || exit.Signal != 0 || r.doubts == mostDoubts || !r.noStep(exit) {
		return false, nil
	}
	reason := numbers.ReplaceAllString(strings.Join(o.Reasons, "; "), "#")
	if r.doubts > 0 && reason == r.reason {
		return false, nil // the same with two checkpoints: then neither of them is the reason
	}
	bad := r.from
	r.reason = reason
	r.reject(bad)
	r.doubts++
	older, err := r.newest()
	if err != nil || older == nil {
		return false, err
	}
	if older.Micro == 0 {
		older.Micro = bad.Micro
	}
	r.saved = older
	when := "before its first step"
	if r.made() < 0 {
		when = "soon" // nobody has counted its steps
	}
	r.s.Note(runs.Entry{Kind: runs.KindWarning, Text: fmt.Sprintf("%s; %s after it had resumed from %s, which perhaps cannot be loaded: it resumes from %s", exits.Describe(o, exit), when, bad.Path, older.Path)})
	return true, nil
}

// noStep reports whether the newest attempt seems to have ended before its first step.
func (r *runner) noStep(exit command.Exit) bool {
	if made := r.made(); made >= 0 {
		return made == 0 && lasted(exit) < longestLoad
	}
	return lasted(exit) < youngDeath
}

// settle decides about the checkpoints that have been rejected. If the newest attempt, which
// resumed from an older one, made a step, they were the reason why earlier attempts failed. If
// the run ends first, that remains unknown, and a later process tries them again.
func (r *runner) settle(o exits.Outcome) {
	if r.doubts > 0 && (o.Kind == exits.Done || r.progressed() || r.made() > 0) {
		r.judge(true)
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

// recover asks the session what to do about an attempt that ran out of memory. If the answer
// is to wait, it sets r.waits.
func (r *runner) recover(ctx context.Context, o exits.Outcome, exit command.Exit) (again bool, err error) {
	evidence := *o.Evidence
	evidence.Host = o.Kind != exits.OutOfMemory
	if o.Gradless && evidence.Failure.Phase.SizedByMicro() && r.s.Running().Eval > 1 {
		evidence.Failure.Phase = memory.PhaseEval // of the two batches, its size is the one that changes no training
	}
	evidence.Resuming = r.resuming(evidence.Failure.Phase, lasted(exit))
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

// resuming reports whether the newest attempt may have run out of memory because it resumed
// from a checkpoint. Its micro-batch must be no larger than that of the attempt that wrote
// the checkpoint. It must have failed either while loading or early in its steps. Early
// means that it had run for less time than the earlier attempt kept running after it wrote
// the checkpoint.
func (r *runner) resuming(phase memory.Phase, lived time.Duration) bool {
	if r.from == nil || r.progressed() || r.s.Running().Largest() > r.from.Micro {
		return false
	}
	return phase == memory.PhaseLoad || phase.SizedByMicro() && lived+checkpoints.Settled < r.beyond
}

// progressed reports whether the newest attempt wrote a checkpoint that is newer than the one
// that it resumed from.
func (r *runner) progressed() bool {
	return r.saved != nil && r.saved.after(r.from)
}

// lost returns how much of the newest attempt's work is lost: the time since its newest
// checkpoint if it wrote one and the command can resume, or else all of its time. It
// returns 0 if that is not known.
func (r *runner) lost() time.Duration {
	switch {
	case !r.recovers: // it is not known where such a command continues if the user starts it again
		return 0
	case r.resumes && r.progressed():
		return r.beyond
	}
	return lasted(r.last)
}

func lasted(exit command.Exit) time.Duration {
	return time.Duration(exit.Seconds * float64(time.Second))
}
