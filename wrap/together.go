package wrap

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"headroom/harness"
	"headroom/runs"
	"headroom/wrap/checkpoints"
	"headroom/wrap/child"
	"headroom/wrap/command"
	"headroom/wrap/exits"
	"headroom/wrap/nodes"
)

// together is [Wrapped.Run] for a command that runs on several nodes.
func (w *Wrapped) together(ctx context.Context, s *harness.Session) (result harness.Result, code int, err error) {
	release := w.Nodes.Stops(ctx)
	var over nodes.Over
	if w.Nodes.Node() == 0 {
		result, code, err = w.runner(led{w}, s).run(ctx)
		over = nodes.Over{Done: err == nil, Interrupted: errors.Is(err, harness.ErrInterrupted) || errors.Is(err, context.Canceled)}
		if err != nil {
			over.Code, over.Why = cmp.Or(code, 1), err.Error()
		}
	} else {
		code, err = w.follow(ctx, s)
		result, err = s.End(err)
	}
	if !release() && w.Nodes.Node() != 0 && err == nil { // it was asked to stop when all was done
		err = &InterruptedError{}
	}
	w.Nodes.Leave(over)
	return result, code, err
}

// led makes the attempts of a command on several nodes, as node 0 does: it says how each begins, and
// what it returns is how the attempt ended on all nodes.
type led struct{ *Wrapped }

func (l led) attempt(ctx context.Context, b beginning) (exits.Outcome, command.Exit, error) {
	err := checkpoints.SetAside(l.Line, l.aside) // before any node looks for a checkpoint by itself
	if l.aside = nil; err == nil {
		err = l.clone(b)
	}
	if err != nil {
		return exits.Outcome{}, command.Exit{}, err
	}
	if err := l.Nodes.Lead(ctx, orderFor(l.journal.Number(), b)); err != nil {
		return exits.Outcome{}, command.Exit{}, err
	}
	o, exit, err := l.part(ctx, b)
	if err != nil {
		return o, exit, err
	}
	all, err := l.Nodes.Gather()
	if err != nil {
		return o, exit, err
	}
	node := nodes.Counts(all)
	if all[node].Error != "" {
		return o, exit, errors.New("on " + l.Nodes.Host(node) + ": " + all[node].Error)
	}
	if node != 0 {
		o, exit = elsewhere(all[node], l.Nodes.Host(node), exit)
		l.decides = o.Kind.Memory() || o.Kind == exits.DeviceGone || l.decides
	}
	return o, exit, nil
}

// clone writes the clone of a checkpoint that the command needs for its next attempt, if it needs one. All
// nodes resume from the same one, so node 0 writes it alone.
func (w *Wrapped) clone(b beginning) error {
	next, err := w.prepare(b.Plan, b.From, b.fallbacks()...)
	next.Copies = nil
	if err != nil {
		return err
	}
	return next.Write()
}

// elsewhere returns how an attempt ended if the end on another node, called name, counts. own is how it ended on this one.
func elsewhere(r nodes.Report, name string, own command.Exit) (exits.Outcome, command.Exit) {
	o := r.Outcome
	if len(o.Reasons) > 0 {
		o.Reasons = append([]string{"on " + name + ": " + o.Reasons[0]}, o.Reasons[1:]...)
	}
	own.Code, own.Signal = r.Exit.Code, r.Exit.Signal // its times are of this node's clock
	return o, own
}

// part makes this node's part of an attempt, and tells the other nodes how it ended.
func (w *Wrapped) part(ctx context.Context, b beginning) (exits.Outcome, command.Exit, error) {
	o, exit, err := w.attempt(ctx, b)
	r := nodes.Report{Outcome: o, Exit: exit, Peer: w.peer}
	r.Exit.Ranks, r.Exit.GPUs = nil, nil // they have been evaluated
	if err != nil {
		r.Error = err.Error()
		r.Outcome = exits.Outcome{Kind: exits.Failed, Rank: -1, Device: -1}
		if errors.Is(err, harness.ErrInterrupted) {
			r.Error, r.Outcome.Kind = "", exits.Stopped
		}
	}
	if ctx.Err() != nil {
		r.Outcome.Kind = exits.Stopped
	}
	w.Nodes.Report(r)
	return o, exit, err
}

func orderFor(attempt int, b beginning) nodes.Order {
	o := nodes.Order{Attempt: attempt, Settings: b.Settings}
	if f := b.From; f != nil {
		o.From = &nodes.Checkpoint{Path: f.Path, Step: f.Step, Micro: f.Micro, Problem: f.found.Problem}
	}
	return o
}

// follow makes this node's parts of the attempts that node 0 orders. The int is the exit status of
// the newest.
func (w *Wrapped) follow(ctx context.Context, s *harness.Session) (code int, err error) {
	for {
		o, err := w.Nodes.Follow(ctx)
		if err != nil || o == nil {
			return code, ended(err, code)
		}
		if text := w.clear(ctx); text != "" {
			s.Note(runs.Entry{Kind: runs.KindLeft, Text: text})
		}
		exit, err := w.obey(ctx, s, *o)
		code = exit.Code
		if ctx.Err() != nil {
			return code, &InterruptedError{exit.Signal}
		}
		if err != nil && w.Nodes.Fatal() == nil { // node 0 ends the run, and this node need not wait for that
			return code, err
		}
	}
}

// ended returns the error for the end of a run that node 0 has decided about. code is the status with which
// this node's command ended.
func ended(err error, code int) error {
	var over *nodes.OverError
	if errors.As(err, &over) && !over.Over.Interrupted {
		return &ExitError{Code: cmp.Or(code, over.Over.Code), Why: over.Error(), What: over.Error()}
	}
	return err
}

// obey makes this node's part of the attempt that node 0 has ordered.
func (w *Wrapped) obey(ctx context.Context, s *harness.Session, o nodes.Order) (command.Exit, error) {
	b := beginning{Settings: o.Settings}
	var begins *runs.Checkpoint
	if f := o.From; f != nil {
		b.From = &checkpoint{Path: f.Path, Step: f.Step, Micro: f.Micro, found: &checkpoints.Checkpoint{Path: f.Path, Problem: f.Problem}}
		begins = &runs.Checkpoint{Step: f.Step, Plan: o.Settings.Plan}
	}
	s.Told(o.Attempt, o.Settings, "node 0")
	if err := s.Attempt(begins); err != nil {
		return command.Exit{}, err
	}
	if err := w.visible(ctx, b); err != nil {
		w.Nodes.Report(nodes.Report{Outcome: exits.Outcome{Kind: exits.Failed, Rank: -1, Device: -1}, Error: err.Error()})
		return command.Exit{}, err
	}
	outcome, exit, err := w.part(ctx, b)
	if err == nil {
		s.Note(runs.Entry{Kind: runs.KindExit, Text: exits.Describe(outcome, exit), Seconds: exit.Seconds})
	}
	return exit, err
}

// visible waits until this node sees what node 0 resumes from: the checkpoint, or a clone of it. A client of NFS may need a
// while to notice new files.
func (w *Wrapped) visible(ctx context.Context, b beginning) error {
	if b.From == nil || !w.chooses() {
		return nil
	}
	next, err := w.prepare(b.Plan, b.From, b.fallbacks()...)
	if err != nil {
		return err
	}
	path := b.From.Path
	if next.Clone != nil {
		path = next.Clone.Path
	}
	for tries := 0; ; tries++ {
		_, err := os.Stat(w.Line.From(path))
		if err == nil {
			return nil
		}
		if tries == visibleTries {
			return fmt.Errorf("the checkpoint that node 0 resumes from is not to be seen: %w; checkpoints have to be on storage that all nodes share", err)
		}
		if err := harness.Sleep(ctx, visibleEvery); err != nil {
			return err
		}
	}
}

const (
	visibleTries = 90
	visibleEvery = time.Second
)

// others returns a channel that tells once that the newest attempt is to end because of another node. It is nil if
// there is no other.
func (w *Wrapped) others() (_ chan *nodes.Ends, end func()) {
	if w.Nodes == nil {
		return nil, func() {}
	}
	ctx, end := context.WithCancel(context.Background())
	told := make(chan *nodes.Ends, 1)
	go func() {
		if ends := w.Nodes.Ending(ctx); ends != nil {
			told <- ends
		}
	}()
	return told, end
}

// endsWith ends the child because of another node, unless headroom is ending it already for the reason in own. It returns the outcome
// of the attempt; nil if the child has been asked to stop, as a user does who lets it save.
func (w *Wrapped) endsWith(ends *nodes.Ends, c *child.Child, own *exits.Outcome) *exits.Outcome {
	switch {
	case own != nil:
		return own
	case ends.How == nodes.Stopped:
		w.Reporter.Say("%s, and so the command is asked to stop here, too", ends.Why)
		w.interrupt()
		_ = c.Signal(syscall.SIGTERM)
		return nil
	}
	w.Reporter.Say("%s, and so headroom ends it here, too", ends.Why)
	w.peer = true
	c.Stop()
	return byUs(exits.Failed, "headroom ended it: "+ends.Why)
}
