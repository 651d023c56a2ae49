package wrap

import (
	"context"
	"fmt"
	"slices"
	"time"

	"headroom/harness"
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
