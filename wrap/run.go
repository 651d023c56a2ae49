package wrap

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"time"

	"headroom/harness"
	"headroom/runs"
	"headroom/wrap/checkpoints"
	"headroom/wrap/command"
	"headroom/wrap/exits"
	"headroom/wrap/profile"
)

// attempts are what a run consists of. A [Wrapped] makes those of a real command.
type attempts interface {
	// attempt makes one, and returns when the command has ended. The context is cancelled when the
	// user asks to stop. An error means that the command could not be started or rewritten.
	attempt(context.Context, beginning) (exits.Outcome, command.Exit, error)
	newest() (*checkpoint, error) // the newest complete checkpoint, or nil if there is none
	check(beginning) error        // why an attempt after the first could not begin, or nil
	clear(context.Context) string // ends what the newest attempt left in the way of another one; says so, or ""
	leftText() string             // what to say about processes that were left running when the run ends, or ""
	made() int                    // optimizer steps of the newest attempt, or -1 if that is not known
	reject(*checkpoint)           // makes newest return other checkpoints: the command could not resume from this one
	judge(bad bool)               // says whether that was the fault of the checkpoints that were rejected
}

// beginning is how an attempt of the command begins.
type beginning struct {
	harness.Settings
	From *checkpoint // checkpoint to resume from; nil means the beginning of the training
}

// fallbacks returns the names of the profile's fallbacks that are in use.
func (b beginning) fallbacks() []string {
	if !b.Recomputing {
		return b.Eased
	}
	return append(slices.Clone(b.Eased), profile.Recompute)
}

// checkpoint is a complete checkpoint that the command has written.
type checkpoint struct {
	Path string
	Step int       // number of optimizer steps, or in the command's own unit; 0 if the checkpoint's name has no number
	Time time.Time // when it was written

	// Micro is the micro-batch of the attempt that wrote the checkpoint, or 0 if it is not
	// known. Run fills it in, since a framework may resume only with the same micro-batch.
	Micro int

	// Perhaps says that the checkpoint may be another run's. The command cannot resume from
	// it, but if there is no other, it does not start over either.
	Perhaps bool

	found *checkpoints.Checkpoint
}

// after reports whether c is newer than other, which may be nil. Of two checkpoints with
// the same step, the one written later is newer: a checkpoint that is overwritten in place
// keeps its name.
func (c *checkpoint) after(other *checkpoint) bool {
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

	Memory bool   // memory had run out, and headroom had no remedy for this command
	Tail   []byte // the end of what the command printed
	Killed bool   // a signal such as SIGKILL ended the command, which had no chance to say why
}

func (e *ExitError) Error() string { return e.Why }

// waitBetween is the length of one wait for other processes to free memory.
const waitBetween = time.Minute

// runner is one call of [Wrapped.Run].
type runner struct {
	attempts
	resumes  bool   // the command can resume from a checkpoint; if not, it starts over, and loses all its progress
	chooses  bool   // headroom chooses the checkpoint, and may try an older one
	serves   bool   // the command is a Jupyter kernel, which whoever has started it ends by a signal if it takes its time
	recovers bool   // the command may be changed and started again; if not, the first attempt is the only one
	why      string // why not; reported if recovering would have helped
	sleep    func(ctx context.Context, d time.Duration) error

	s       *harness.Session
	saved   *checkpoint     // newest checkpoint on disk after the last attempt
	beyond  time.Duration   // how long the attempt that wrote saved continued afterwards
	from    *checkpoint     // checkpoint that the newest attempt resumed from; nil for the beginning
	last    command.Exit    // of the newest attempt
	waits   time.Duration   // how long to wait before the next attempt, for other processes to free memory
	lengths []time.Duration // how long each attempt lasted
	doubts  int             // how many checkpoints in a row have been rejected
	reason  string          // why the last of them was, without numbers
}

// Run starts one attempt of the command after another, until one finishes or nothing is left
// to try. The session decides what to do after each attempt, and keeps the records; Run ends
// the session. The int is the exit status of the newest attempt, with which the caller should
// exit.
//
// The error is an *[ExitError] if the command ended by itself and headroom has no remedy,
// and a *[harness.GaveUpError] if all remedies have been used. It wraps
// [harness.ErrInterrupted] if the user asked to stop.
func (w *Wrapped) Run(ctx context.Context, s *harness.Session) (harness.Result, int, error) {
	w.journal = s
	if w.Seen != nil {
		w.place = checkpoints.Place(w.Seen)
	}
	defer func() { w.writers.Close() }()
	if w.Begun.IsZero() {
		w.Begun = time.Now()
		w.list()
		defer w.wait() // it writes to the folder
	}
	ctx, w.interrupt = context.WithCancel(ctx)
	defer w.interrupt()
	if w.Nodes != nil {
		return w.together(ctx, s)
	}
	return w.runner(w, s).run(ctx)
}

// runner returns a runner of w whose attempts all makes.
func (w *Wrapped) runner(all attempts, s *harness.Session) *runner {
	r := &runner{attempts: all, s: s, resumes: w.resumes(), chooses: w.chooses(), serves: w.serves(), recovers: w.Match != nil, sleep: harness.Sleep}
	if w.Why != nil {
		r.why = w.Why.Error()
	}
	return r
}

// serves reports whether the command is a Jupyter kernel.
func (w *Wrapped) serves() bool {
	launch, err := command.Peel(w.Line)
	return err == nil && slices.Contains([]string{"ipykernel_launcher", "ipykernel"}, launch.Module)
}

func (r *runner) run(ctx context.Context) (harness.Result, int, error) {
	code, again := 0, true
	var err error
	if r.saved, err = r.newest(); err != nil {
		result, err := r.s.End(err)
		return result, 0, err
	}
	for again {
		code, again, err = r.once(ctx)
	}
	r.note(r.leftText())
	result, err := r.s.End(err)
	return result, code, err
}

// once makes one attempt, and does what its end calls for. code is the exit status of the newest
// attempt, and again reports whether another one should follow.
func (r *runner) once(ctx context.Context) (code int, again bool, err error) {
	from := r.resume()
	var begins *runs.Checkpoint
	if from != nil {
		begins = &runs.Checkpoint{Step: from.Step, Plan: r.s.Running()}
	}
	if len(r.lengths) > 0 {
		if err := r.possible(r.s.Settings()); err != nil {
			r.stops(err.Error(), "")
			return r.last.Code, false, err
		}
	}
	if err := r.s.Attempt(begins); err != nil {
		return r.last.Code, false, err
	}
	r.from = from
	b := beginning{r.s.Settings(), from} // Attempt may have taken over a plan
	outcome, exit, err := r.attempt(ctx, b)
	if err != nil {
		return r.last.Code, false, err
	}
	r.last, r.lengths = exit, append(r.lengths, lasted(exit))
	if err := r.progress(); err != nil {
		return exit.Code, false, err
	}
	r.settle(outcome)
	r.s.Note(runs.Entry{Kind: runs.KindExit, Text: exits.Describe(outcome, exit), Seconds: exit.Seconds})
	if again, err = r.follow(ctx, outcome, exit); again {
		again, err = r.prepare(ctx)
	}
	if again && reflect.DeepEqual(r.s.Settings(), b.Settings) {
		again, err = r.pause(ctx)
	}
	return exit.Code, again, err
}

// note records what happened to processes that an attempt left running, if anything did.
func (r *runner) note(text string) {
	if text != "" {
		r.s.Note(runs.Entry{Kind: runs.KindLeft, Text: text})
	}
}

// prepare makes room for the next attempt: it ends what the newest one left in its way, and then
// waits, if that was decided.
func (r *runner) prepare(ctx context.Context) (again bool, err error) {
	if text := r.clear(ctx); text != "" {
		r.note(text)
		if err := r.progress(); err != nil { // a process that has been ended may have been writing a checkpoint
			return false, err
		}
	}
	wait := r.waits
	r.waits = 0
	if wait == 0 {
		return true, nil
	}
	if err := r.sleep(ctx, wait); err != nil {
		return false, fmt.Errorf("stopped while waiting for other processes: %w", err)
	}
	return true, nil
}

// resume returns the checkpoint that the next attempt would resume from, or nil if it would
// start from the beginning.
func (r *runner) resume() *checkpoint {
	if !r.resumes {
		return nil
	}
	return r.saved
}

// possible returns the reason why no attempt could begin with the settings s, or nil if one
// could.
func (r *runner) possible(s harness.Settings) error {
	return r.check(beginning{s, r.resume()})
}

// pause waits before the next start of an unchanged command that ended soon after it was
// started, and gives up if that keeps happening. After a change of the plan no pause is
// needed, since plans can change only a few times.
func (r *runner) pause(ctx context.Context) (again bool, err error) {
	wait, again := pause(r.lengths)
	if !again {
		return false, &ExitError{Code: r.last.Code, Why: fmt.Sprintf("it ended within %v, %d times in a row", youngDeath, youngDeaths)}
	}
	if wait == 0 {
		return true, nil
	}
	if err := r.sleep(ctx, wait); err != nil {
		return false, fmt.Errorf("stopped before the next start: %w", err)
	}
	return true, nil
}

// progress looks for checkpoints after an attempt. It tells the session about a new one, which
// resets the session's limits on repeated failures.
func (r *runner) progress() error {
	known := r.saved
	newest, err := r.newest()
	if r.saved = newest; err != nil || newest == nil || newest.Perhaps {
		return err
	}
	switch {
	case newest.after(known):
		newest.Micro, r.beyond = r.s.Running().Largest(), 0
		if !newest.Time.IsZero() {
			r.beyond = max(0, r.last.Began.Add(lasted(r.last)).Sub(newest.Time)) // below 0 if the file system's clock is ahead
		}
		return r.s.Reached(newest.Step, newest.Path)
	case newest.Path == known.Path:
		newest.Micro = known.Micro
	}
	return nil
}

const (
	// youngDeath is the length below which an attempt counts as having ended in a young
	// death. A command that ends so soon has not started to train.
	youngDeath = 10 * time.Second
	// youngDeaths is how many young deaths in a row make headroom give up.
	youngDeaths = 8

	firstPause, longestPause = time.Second, time.Minute
)

// pause returns how long to wait before a command is started again. lengths holds the
// length of each of its attempts, oldest first. After an attempt of at least [youngDeath] the
// wait is 0. After one young death it is a second, and it doubles with each further one
// in a row, up to a minute. again is false after [youngDeaths] of them in a row, because
// another start would be of no use.
func pause(lengths []time.Duration) (wait time.Duration, again bool) {
	young := 0
	for i := len(lengths) - 1; i >= 0 && lengths[i] < youngDeath; i-- {
		young++
	}
	switch {
	case young == 0:
		return 0, true
	case young >= youngDeaths:
		return 0, false
	}
	return min(longestPause, firstPause<<(young-1)), true
}
