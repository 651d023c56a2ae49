package wrap

import (
	"errors"
	"slices"
	"time"

	"headroom/runs"
	"headroom/wrap/checkpoints"
	"headroom/wrap/command"
	"headroom/wrap/profile"
	"headroom/wrap/rewrite"
)

// List records which checkpoints there are before the command is started for the first time:
// those are not of this run. It looks for their names at once, and reads them while the
// command starts.
func (w *Wrapped) List() {
	if w.Match == nil || w.Match.Profile.Checkpoints.Glob == "" {
		return
	}
	names, err := checkpoints.NamesOf(w.Match)
	if err != nil || !names.Known() {
		return // then their times decide
	}
	listing := make(chan []runs.Mark, 1)
	w.mu.Lock()
	w.listing = listing
	w.mu.Unlock()
	go func() {
		before := names.Marks()
		if w.Keep != nil {
			w.Keep(runs.Known{Before: before})
		}
		listing <- before
	}()
}

// Recall is [Wrapped.List] for a run that is continued. known is what the run's earlier
// processes have kept, or nil if they have kept nothing.
func (w *Wrapped) Recall(known *runs.Known) {
	w.lived = true
	if known == nil {
		return
	}
	w.known, w.listed = *known, true
	if known.Shared != "" && w.Match != nil { // what comes from now on is not that run's, or Joined is called again
		for _, m := range checkpoints.Present(w.Match) {
			if !slices.ContainsFunc(known.Certain, m.Same) {
				w.known.Strange = append(w.known.Strange, m)
			}
		}
		w.known.Shared, w.known.Certain = "", nil
	}
}

// Joined records that another run has come that keeps its checkpoints in the same place as m,
// the match of this run: what is written from now on may be that run's. It is called before
// that run starts its command, and may be called from any goroutine.
func (w *Wrapped) Joined(m *rewrite.Match, who string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.awaitList(); w.known.Shared != "" {
		return
	}
	w.known.Shared, w.known.Certain = who, checkpoints.Present(m)
	w.keep()
}

// Wait waits until List has read the checkpoints and called Keep.
func (w *Wrapped) Wait() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.awaitList()
}

// awaitList waits for what List has found. The caller holds w.mu.
func (w *Wrapped) awaitList() {
	if w.listing != nil {
		w.known.Before, w.listed, w.listing = <-w.listing, true, nil
	}
}

// past returns what is known about the checkpoints.
func (w *Wrapped) past() checkpoints.Past {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.awaitList()
	past := checkpoints.Past{Known: w.known, Begun: w.Begun, Listed: w.listed}
	past.Failed = slices.Concat(past.Failed, w.doubted)
	past.Most = w.most()
	if w.writers != nil {
		past.Writer = w.writers.Of
	}
	return past
}

// Unwatch ends what watches who writes checkpoints.
func (w *Wrapped) Unwatch() { w.writers.Close() }

// most returns the Most of a [checkpoints.Past].
func (w *Wrapped) most() int64 {
	if w.Made == nil || w.Match == nil || w.Match.Profile.Unit != profile.Steps || w.base < 0 {
		return 0
	}
	made := w.Made()
	if made <= 0 {
		return 0
	}
	return int64(w.base) + 2*int64(made) + 100 // a framework may count steps that its optimizer skips
}

// baseOf returns the step with which a life begins that resumes from the given checkpoint, or
// -1 if that is not known.
func baseOf(m *rewrite.Match, from *Saved) int {
	if from != nil && from.Step > 0 {
		return from.Step
	}
	if from != nil || m == nil || m.Profile.Resume.Mode == "auto" {
		return -1
	}
	for knob := range m.Profile.Resume.Set {
		if given, err := m.Sets(knob); given || err != nil { // the user's own command resumes from somewhere
			return -1
		}
	}
	return 0
}

// Newest returns the newest complete checkpoint of this run, or nil if there is none.
func (w *Wrapped) Newest() (*Saved, error) {
	if w.Match == nil || !w.lived && !w.Begun.IsZero() { // nothing has been started, so nothing has been saved
		return nil, nil
	}
	past := w.past()
	if w.decides {
		if root, glob := checkpoints.Absolute(w.Match); glob != "" {
			past.Open = checkpoints.OpenFor(command.Resolved(root))
		}
	}
	past.Over = !w.decides // if the result is only reported, it is not worth waiting for
	found, err := checkpoints.Find(w.Match, time.Now(), past)
	if err == nil && slices.ContainsFunc(found.All, func(c checkpoints.Checkpoint) bool { return c.Settles }) {
		past.Still = found.Marks()
		time.Sleep(checkpoints.Settled) // the writer is dead, so nothing changes the checkpoint meanwhile
		found, err = checkpoints.Find(w.Match, time.Now(), past)
	}
	if errors.As(err, new(*rewrite.ResumeError)) || errors.As(err, new(*rewrite.KnobError)) {
		return nil, nil // it is not known where checkpoints are, which must not keep the command from being run
	}
	w.aside, w.skipped = found.Aside(), found.Skipped()
	if err != nil {
		return nil, err
	}
	w.saved(found)
	if found.Newest == nil {
		return nil, nil
	}
	return &Saved{Path: found.Newest.Path, Step: int(found.Newest.Number), Time: found.Newest.Time, Perhaps: found.Newest.Perhaps, checkpoint: found.Newest}, nil
}

// saved keeps the checkpoints that this run has written. Before this process has started the
// command, they may be those of somebody else.
func (w *Wrapped) saved(found checkpoints.Found) {
	if !w.ran || len(found.All) == 0 || found.Newest != nil && found.Newest.Perhaps {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.known.Saved = found.Marks()
	w.keep()
}

// keep passes on what is known. The caller holds w.mu.
func (w *Wrapped) keep() {
	if w.Keep != nil && w.listed {
		w.Keep(w.known)
	}
}

// Wrote reports whether an earlier process of this run has seen the checkpoint c, as it is
// now, as one of the run.
func (w *Wrapped) Wrote(c *Saved) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.ContainsFunc(w.known.Saved, func(m runs.Mark) bool { return m.Same(c.checkpoint.Mark()) })
}

// Reject makes Newest return checkpoints other than c, from which the command could not
// resume, until [Wrapped.Judge] is called.
func (w *Wrapped) Reject(c *Saved) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.doubted = append(w.doubted, c.checkpoint.Mark())
}

// Judge ends the doubts about the checkpoints that were rejected. If bad is true, they are not
// chosen again in this run as long as they stay as they are; if not, they were not the reason.
func (w *Wrapped) Judge(bad bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if bad {
		w.known.Failed = append(w.known.Failed, w.doubted...)
		w.keep()
	}
	w.doubted = nil
}
