package wrap

import (
	"context"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"headroom/harness"
	"headroom/memory"
	"headroom/nvml"
	"headroom/recovery"
	"headroom/runs"
	"headroom/wrap/checkpoints"
	"headroom/wrap/child"
	"headroom/wrap/command"
	"headroom/wrap/exits"
	"headroom/wrap/nodes"
	"headroom/wrap/profile"
	"headroom/wrap/rewrite"
)

// Wrapped is a command that is ready to run, together with what is known about it. Only one
// goroutine may use it, except where a method says otherwise.
type Wrapped struct {
	Line  command.Line
	Seen  *rewrite.Match // what the command was recognised as; nil if nothing is known about it
	Match *rewrite.Match // Seen, or nil if the command must never be changed
	Why   error          // why Match is nil; nil if it is not
	Asked recovery.Plan  // the plan that the command asks for, according to Match
	Trust bool           // the user vouches for the conditions in an UnprovenError

	Folder *runs.Folder // the run's folder
	Runs   string       // the folder of all runs
	Begun  time.Time    // when the run began: older checkpoints belong to another training run; if zero, Run sets it

	Free    memory.Bytes  // memory that each of its GPUs must have free before an attempt begins; 0 means no check
	Hang    time.Duration // time without a sign of life after which the command counts as hanging; 0 means no check
	Restart bool          // whether to end a hanging command, and start it again from its newest checkpoint
	Leave   bool          // whether to end a command whose memory would run out, just after a checkpoint, and start it again from there

	Inside   Inside // nil if nobody watches from inside
	Reporter Reporter
	Nodes    *nodes.Member // this node's part, if the command runs on several; nil if this headroom looks after all of it

	journal   harness.Journal
	place     string                      // where the command keeps its checkpoints, if they have a folder of their own; else ""
	before    []runs.Entry                // journal of the run's earlier processes
	mixed     string                      // how the result was seen to depend on which rows are in a batch together, or ""; see MixedError
	child     atomic.Pointer[child.Child] // of the newest attempt
	gpus      func() ([]nvml.GPU, error)  // nvml.GPUs, if nil
	mu        sync.Mutex                  // guards known, listed, listing and doubted
	known     runs.Known                  // of the checkpoints
	listed    bool                        // known.Before is complete
	listing   chan []runs.Mark            // receives known.Before when list has found it; nil if it has been received
	skipped   []string                    // why checkpoints that seem newer than the one from which the next attempt resumes are not used
	attempted bool                        // an attempt of this run has begun, in this process or in an earlier one
	ran       bool                        // the same, in this process
	doubted   []runs.Mark                 // the command could not resume from these, for whatever reason
	base      int                         // the step with which the newest attempt began; -1 if that is not known
	writers   *checkpoints.Writers        // who writes checkpoints, as far as it has been seen
	seen      []runs.Mark                 // the checkpoints that complete found last
	aside     []checkpoints.Rename        // of incomplete checkpoints that the next attempt would otherwise choose
	decides   bool                        // the newest attempt ended in a way after which another one may resume from a checkpoint
	behind    behind                      // what attempts have left running
	interrupt context.CancelFunc          // asks the run to stop, as its user would
	peer      bool                        // the newest attempt was ended because it had ended on another node
}

// Inside is what happens inside the processes of a command.
type Inside interface {
	// Begin prepares an attempt, and returns the command to start in place of c.
	Begin(c command.Line) command.Line
	// End is called once the attempt has ended. It gets the outcome as seen from outside, or
	// the zero Outcome if the command was not started, and returns the outcome to report.
	End(exits.Outcome) exits.Outcome
	// RunsOut returns when memory will run out if its use keeps growing, and what grows. The
	// time is zero if nothing suggests that memory will run out.
	RunsOut() (at time.Time, why string)
	// Made returns how many optimizer steps the newest attempt has made, or -1 if that is not
	// known.
	Made() int
}

// Reporter is told what happens in a run. Any goroutine may call its methods.
type Reporter interface {
	Entry(runs.Entry)               // an entry of the journal; the session is locked meanwhile
	Say(format string, args ...any) // what the user need not read
	Warn(format string, args ...any)
}

// New returns the command c with what is known about it. It is not an error if nothing is known:
// then the command is run as it is, and never changed, for the reason in Why.
func New(c command.Line, profiles []profile.Profile, given rewrite.Given) *Wrapped {
	w := &Wrapped{Line: c}
	var asked rewrite.Asked
	if w.Seen, w.Why = rewrite.Recognise(c, profiles, given); w.Why == nil {
		asked, w.Why = rewrite.Asks(w.Seen)
	}
	if w.Why == nil {
		w.Match, w.Asked = w.Seen, asked.Plan
	}
	return w
}

// UnprovenError says that a change keeps the training the same only under conditions
// that headroom cannot verify.
type UnprovenError struct{ Prove []string }

func (e *UnprovenError) Error() string {
	return "a smaller micro-batch requires that " + strings.Join(e.Prove, ", and that ") + "; pass --trust if so"
}

// MixedError says that a smaller micro-batch would not keep the training the same, as the
// worker saw in a step that it refused. Unlike an [UnprovenError], it is not a matter of trust.
type MixedError struct{ Why string }

func (e *MixedError) Error() string {
	return "a smaller micro-batch would train something else, even with accumulation: " + e.Why + "; if that is acceptable, give the command a smaller batch yourself"
}

// resumes reports whether headroom can make the command resume from a checkpoint.
func (w *Wrapped) resumes() bool { return w.Match != nil && w.Match.Profile.Resume.Mode != "none" }

// chooses reports whether headroom, and not the command, chooses the checkpoint to resume from.
func (w *Wrapped) chooses() bool { return w.Match != nil && w.Match.Profile.Resume.Mode == "path" }

// prepare returns the command to start with a plan, from a checkpoint or, if from is
// nil, from the beginning. If nothing has to change, that is the user's own command. An
// [*UnprovenError] says that w.Trust is needed; a [*MixedError], that the plan would change the
// training.
func (w *Wrapped) prepare(plan recovery.Plan, from *checkpoint, fallbacks ...string) (rewrite.Result, error) {
	if w.Match == nil || plan == w.Asked && from == nil && len(fallbacks) == 0 {
		return rewrite.Result{Command: w.Line, Plan: plan}, nil
	}
	if w.mixed != "" && plan.Largest() < w.Asked.Largest() {
		return rewrite.Result{}, &MixedError{w.mixed}
	}
	resume := rewrite.Resume{}
	if from != nil {
		resume = rewrite.Resume{From: from.found.Path, Problem: from.found.Problem, Micro: from.Micro, Versions: rewrite.Versions(w.Match)}
	}
	next, err := rewrite.To(w.Match, plan, resume, fallbacks...)
	if err != nil {
		return next, err
	}
	if len(next.Prove) > 0 && !w.Trust {
		return next, &UnprovenError{next.Prove}
	}
	return next, nil
}

// Name returns the run's name.
func (w *Wrapped) Name() string { return filepath.Base(w.Folder.Dir()) }

// BreakLine calls [child.Child.BreakLine] for the newest attempt. It returns false before the
// first one. Any goroutine may call it.
func (w *Wrapped) BreakLine() bool {
	child := w.child.Load()
	return child != nil && child.BreakLine()
}
