package wrap

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"time"

	"headroom/harness"
	"headroom/memory"
	"headroom/recovery"
	"headroom/runs"
)

// RunOptions are what [Run] needs from the world around the command: how to run one
// life of it, and what is on disk. Tests fake them.
type RunOptions struct {
	// Live runs one life of the command, and returns when none of its processes is left.
	// The context is cancelled when the user asks to stop. An error means that the command
	// could not be started or rewritten.
	Live func(context.Context, Beginning) (Outcome, Exit, error)
	// Newest returns the newest complete checkpoint, nil if there is none. Newest itself is
	// nil if the command is not known to write any.
	Newest func() (*Saved, error)
	// Resumes reports whether the command can resume from a checkpoint. One that cannot
	// starts over, which costs all that it has done.
	Resumes bool
	// Recover is false for a command that may not be changed at all: then nothing is ever
	// started again.
	Recover bool
	// Why says why Recover is false, to be reported where recovering would have helped.
	Why string
	// Check returns why a life after the first one could not be started as planned. Check is
	// nil if that cannot be known beforehand.
	Check func(Beginning) error

	Sleep func(ctx context.Context, d time.Duration) error // nil really sleeps
}

// Beginning is how a life of the command begins.
type Beginning struct {
	Plan      recovery.Plan
	From      *Saved   // nil for the beginning of the training
	Fallbacks []string // the profile's fallbacks that are in force
}

// Saved is a complete checkpoint of the command's own.
type Saved struct {
	Path string
	Step int       // optimizer steps, or whatever the command counts its checkpoints in; 0 if its name does not say
	Time time.Time // when it was written

	// Micro is the micro-batch of the life that wrote it, 0 if that is not known. Run
	// fills it in: a framework may insist on the same one.
	Micro int

	checkpoint *Checkpoint
}

// after reports whether c is newer than other, which may be nil. The time counts as well,
// because a checkpoint that is overwritten in place keeps its name.
func (c *Saved) after(other *Saved) bool {
	return other == nil || c.Step > other.Step || c.Step == other.Step && c.Time.After(other.Time)
}

// ExitError is a command that ended by itself with a status other than 0, for a
// reason that headroom has no remedy for. Code is to be passed through.
type ExitError struct {
	Code int
	Why  string // what was seen, in a sentence
	How  string // the beginning of that sentence, without the reasons; may be empty
	Hint string // what the user could do; may be empty

	Memory bool // memory had run out, and headroom had no remedy for this command
	Killed bool // by a signal that leaves a command no time for last words
}

func (e *ExitError) Error() string { return e.Why }

// waitBetween is how long one wait for other processes lasts.
const waitBetween = time.Minute

// runner is one call of Run.
type runner struct {
	RunOptions
	s      *harness.Session
	newest *Saved          // newest checkpoint on disk after the last life
	beyond time.Duration   // how long the life that wrote newest continued afterwards
	from   *Saved          // checkpoint that the newest life resumed from; nil for the beginning
	last   Exit            // of the newest life
	lives  []time.Duration // how long each lasted
}

// Run starts one life of the command after another until one finishes or nothing is left
// to try, and ends the session, which keeps the records and decides. The int is the exit
// status of the newest life, which is the one to exit with.
//
// The errors: an *[ExitError] if the command ended by itself and headroom has no
// remedy, a *[harness.GaveUpError] if it has none left, [harness.ErrInterrupted] if
// the user asked to stop, and the errors of Live and Newest.
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
			result, err := s.End(err)
			return result, exit.Code, err
		}
	}
}

// attempt is one life of the command and what follows from how it ended.
func (r *runner) attempt(ctx context.Context) (exit Exit, again bool, err error) {
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
	r.s.Note(runs.Entry{Kind: runs.KindExit, Text: describe(outcome, exit), Seconds: exit.Seconds})
	if again, err = r.follow(ctx, outcome, exit); again && r.s.Running() == b.Plan && len(r.fallbacks()) == len(b.Fallbacks) {
		again, err = r.pause(ctx)
	}
	return exit, again, err
}

// fallbacks are the ones that the session has resorted to so far.
func (r *runner) fallbacks() []string { return fallbacksOf(r.s.Eased(), r.s.Recomputing()) }

func fallbacksOf(eased []string, recomputing bool) []string {
	all := slices.Clone(eased)
	if recomputing {
		all = append(all, Recompute)
	}
	return all
}

// resume is the checkpoint that the next life would resume from; nil for the beginning.
func (r *runner) resume() *Saved {
	if !r.Resumes {
		return nil
	}
	return r.newest
}

// possible reports why no life could begin with these settings.
func (r *runner) possible(s harness.Settings) error {
	if r.Check == nil {
		return nil
	}
	return r.Check(Beginning{s.Plan, r.resume(), fallbacksOf(s.Eased, s.Recomputing)})
}

// pause waits before a command that died young is started again unchanged, and gives
// up on one that keeps dying young. A smaller plan needs no pause: it is another try,
// and there are few of those.
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

// progress looks for checkpoints after a life, and reports one that is newer than those
// before: every "once per step" limit starts afresh with it.
func (r *runner) progress() error {
	known := r.newest
	newest, err := r.look()
	if r.newest = newest; err != nil || newest == nil {
		return err
	}
	switch {
	case newest.after(known):
		newest.Micro, r.beyond = r.s.Running().Largest(), 0
		if !newest.Time.IsZero() {
			r.beyond = r.last.Began.Add(life(r.last)).Sub(newest.Time)
		}
		return r.s.Reached(newest.Step, newest.Path)
	case newest.Path == known.Path:
		newest.Micro = known.Micro
	}
	return nil
}

// follow does what the end of a life calls for.
func (r *runner) follow(ctx context.Context, o Outcome, exit Exit) (again bool, err error) {
	switch {
	case o.Kind == Done:
		return false, nil
	case o.Kind == Stopped || ctx.Err() != nil:
		return false, errInterrupted
	}
	switch o.Kind {
	case OutOfMemory, OutOfHostMemory, OutOfSharedMemory:
		if o.Hopeless = o.HopelessAt(r.s.Running()); r.mayPass(o) {
			o.Hopeless = ""
		}
		if r.Recover && o.OutOfMemory() && o.Hopeless == "" {
			return r.recover(ctx, o, exit)
		}
	case Leaking:
		if !r.Recover || !r.progressed() { // a command that will not be started again is not ended for leaking
			break
		}
		_, err := r.s.Handle(recovery.Event{Left: &recovery.Left{Why: strings.Join(o.Reasons, "; "), From: r.newest.Step}}, life(exit))
		return err == nil, err
	case DeviceGone, Hung:
		if !r.Recover {
			break
		}
		d, err := r.s.Handle(recovery.Event{Gone: &recovery.DeviceGone{Why: describe(o, exit)}}, life(exit))
		if err != nil || d.Remedy == recovery.Exec {
			return err == nil, err
		}
		return false, &ExitError{Code: exit.Code, Why: d.Reason}
	}
	e := &ExitError{Code: exit.Code, Why: describe(o, exit), How: ending(o, exit), Hint: cmp.Or(o.Hopeless, o.Hint, r.resumed(o)), Memory: o.Kind.Memory(), Killed: exit.Signal != 0 && !slices.Contains(spoken, exit.Signal)}
	if e.Memory && e.Hint == "" && r.Why != "" {
		e.Hint = "headroom could have continued with a smaller micro-batch if it had been able to change the command: " + r.Why
	}
	if o.OutOfMemory() && o.Evidence != nil {
		verdict := memory.Diagnose(*o.Evidence)
		failure := o.Evidence.Failure.Measured()
		r.s.Note(runs.Entry{Kind: runs.KindOOM, OOM: &failure, Verdict: &verdict, Text: failure.Error(), Seconds: r.lost().Seconds(), Final: true})
		r.stops(e.Why, e.Hint)
	}
	return false, e
}

// spoken are the signals with which a command is ended by someone who knows why.
var spoken = []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE}

// stops puts on record that nothing more is tried. Whoever ends the run tells the user.
func (r *runner) stops(why, hint string) {
	d := recovery.Decision{Remedy: recovery.Stop, Plan: r.s.Running(), Reason: why, Hint: hint}
	r.s.Note(runs.Entry{Kind: runs.KindDecision, Text: why, Decision: &d})
}

// errInterrupted is [harness.ErrInterrupted] for a command, which does not resume by itself
// when it is run again.
var errInterrupted error = interruptedError{}

type interruptedError struct{}

func (interruptedError) Error() string { return "interrupted" }
func (interruptedError) Unwrap() error { return harness.ErrInterrupted }

// resumed is the hint for a command that failed for another reason after headroom had
// made it resume from a checkpoint, and that wrote no newer one.
func (r *runner) resumed(o Outcome) string {
	if o.Kind != Failed || r.from == nil || r.progressed() {
		return ""
	}
	return fmt.Sprintf("the command had resumed from %s and written no newer checkpoint; if that checkpoint cannot be loaded, move it elsewhere and start again from the one before", r.from.Path)
}

// mayPass reports whether memory that ran out during loading, on which the batch has no
// effect, may be enough next time: other processes held some, or a checkpoint was being loaded.
func (r *runner) mayPass(o Outcome) bool {
	return o.Evidence != nil && o.Evidence.Failure.Phase == memory.PhaseLoad &&
		(r.from != nil || memory.Diagnose(*o.Evidence).Cause == memory.Foreign)
}

// recover asks the session what to do about a life that ran out of memory, and waits if
// that is the answer.
func (r *runner) recover(ctx context.Context, o Outcome, exit Exit) (again bool, err error) {
	evidence := *o.Evidence
	evidence.Host = o.Kind != OutOfMemory
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
		if err := r.Sleep(ctx, waitBetween); err != nil {
			return false, fmt.Errorf("stopped while waiting for other processes: %w", err)
		}
	}
	return true, nil
}

// resuming reports whether a life that resumed from a checkpoint, with a micro-batch no
// larger, failed before it got as far as the life that wrote the checkpoint: while
// loading it, or after less time than the earlier life had gone on for once it had
// written it.
func (r *runner) resuming(phase memory.Phase, lived time.Duration) bool {
	if r.from == nil || r.progressed() || r.s.Running().Largest() > r.from.Micro {
		return false
	}
	return phase == memory.PhaseLoad || phase.SizedByMicro() && lived+settled < r.beyond
}

// progressed reports whether the newest life wrote a checkpoint beyond the one that it
// resumed from.
func (r *runner) progressed() bool {
	return r.newest != nil && r.newest.after(r.from)
}

// lost is how long the newest life worked in vain: after its newest checkpoint, if it wrote one
// and the command can resume, or else all the time; 0 if that is not known.
func (r *runner) lost() time.Duration {
	switch {
	case !r.Recover: // where such a command continues, if it is started again, is its own business
		return 0
	case r.Resumes && r.progressed():
		return max(0, r.beyond)
	}
	return life(r.last)
}

func life(exit Exit) time.Duration { return time.Duration(exit.Seconds * float64(time.Second)) }

// describe says in one sentence how a life ended.
func describe(o Outcome, exit Exit) string {
	why := strings.Join(o.Reasons, "; ")
	switch {
	case o.Kind == Done || why == "":
		return ending(o, exit)
	case o.Kind == Failed && exit.Signal != 0: // the reasons name the signal
		return fmt.Sprintf("after %s, %s", lasting(exit.Seconds), why)
	case o.Kind == Failed: // the reasons say so
		return lasted(exit) + ": " + why
	}
	return ending(o, exit) + ": " + why
}

// ending is how a life ended, without the reasons.
func ending(o Outcome, exit Exit) string { return fmt.Sprintf("%s: %s", lasted(exit), o.Kind) }

// lasted says with which status a life ended, and how long it lasted.
func lasted(exit Exit) string {
	how := fmt.Sprintf("exit status %d", exit.Code)
	if exit.Signal != 0 {
		how = fmt.Sprintf("killed by signal %d (%v)", int(exit.Signal), exit.Signal)
	}
	return fmt.Sprintf("%s after %s", how, lasting(exit.Seconds))
}

// lasting formats seconds the way people say them.
func lasting(seconds float64) string {
	switch {
	case seconds < 90:
		return fmt.Sprintf("%.0f s", seconds)
	case seconds < 90*60:
		return fmt.Sprintf("%.0f min", seconds/60)
	}
	return fmt.Sprintf("%.1f h", seconds/3600)
}

// InHostMemory is the outcome for a command that used no GPU: it trains in host memory,
// so host memory counts as its device's. most is the most that it could hold; 0 changes
// nothing. It is assumed to have held all of that but the size of the request that
// failed.
func (o Outcome) InHostMemory(gpus []GPU, most memory.Bytes) Outcome {
	if o.Kind != OutOfHostMemory || len(gpus) > 0 || most <= 0 || o.Evidence == nil {
		return o
	}
	f := o.Evidence.Failure
	if f.Requested <= 0 {
		return o
	}
	evidence := *o.Evidence
	evidence.Failure, evidence.Host = f.Assume(most), false
	o.Kind, o.Evidence, o.Hint, o.Hopeless = OutOfMemory, &evidence, "", cmp.Or(o.Hopeless, hopeless(fault{}, evidence.Failure))
	return o
}
