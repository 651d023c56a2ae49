package wrap

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"headroom/recovery"
	"headroom/runs"
	"headroom/wrap/checkpoints"
	"headroom/wrap/command"
	"headroom/wrap/profile"
	"headroom/wrap/rewrite"
)

// list records which checkpoints there are before the command is started for the first time:
// those are not of this run. It looks for their names at once, and reads them while the
// command starts.
func (w *Wrapped) list() {
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
		w.set(runs.Known{Before: before})
		listing <- before
	}()
}

// Recall takes over what earlier processes of the run have recorded in its folder.
func (w *Wrapped) Recall() (err error) {
	if w.before, err = runs.ReadJournal(w.Folder.Dir()); err != nil {
		return err
	}
	known, err := w.Folder.Known()
	if err != nil {
		return err
	}
	if len(w.before) > 0 {
		w.Begun = w.before[0].Time
	}
	for _, e := range w.before {
		w.mixed = cmp.Or(e.Mixed, w.mixed)
	}
	w.recall(known)
	return nil
}

// recall is [Wrapped.list] for a run that is continued. known is what the run's earlier
// processes have kept, or nil if they have kept nothing.
func (w *Wrapped) recall(known *runs.Known) {
	w.attempted = true
	if known == nil {
		return
	}
	w.known, w.listed = *known, true
	if known.Shared != "" && w.Match != nil { // what comes from now on is not that run's, or joined is called again
		for _, m := range checkpoints.Present(w.Match) {
			if !slices.ContainsFunc(known.Certain, m.Same) {
				w.known.Strange = append(w.known.Strange, m)
			}
		}
		w.known.Shared, w.known.Certain = "", nil
	}
}

const (
	// clocks is how far apart the clocks of a network disk and of this machine may be.
	clocks = 5 * time.Second
	// lastSave is how long a command may go on saving a checkpoint after its headroom process
	// was killed. The system sends SIGTERM to the command at the time of the kill.
	lastSave = 2 * time.Minute
)

// Own returns an error if the newest checkpoint was written after the earlier processes of the run
// had ended: such a checkpoint belongs to another training run. A run that was killed counts as
// ended at the time when it was last recorded as alive. If there is no such record, Own returns nil. nodes
// says that the command runs on several nodes.
func (w *Wrapped) Own(nodes bool) error {
	status, err := runs.ReadStatus(w.Folder.Dir())
	if err != nil || len(w.before) == 0 {
		return nil // there is nothing to compare with
	}
	last, how, margin := w.before[len(w.before)-1].Time, "had ended", clocks
	switch {
	case status.State == runs.StateInterrupted, status.State == runs.StateFailed:
		if nodes { // another node, with a clock of its own, may have been saving still
			margin += lastSave
		}
	case status.Every > 0: // the status says running, but this process holds the folder: the run was killed
		how, margin = "was last alive", clocks+lastSave+time.Duration(status.Every*float64(time.Second))
		if status.Updated.After(last) {
			last = status.Updated
		}
	default:
		return nil
	}
	newest, err := w.newest()
	if err != nil || newest == nil || w.wrote(newest) || newest.Time.Before(last.Add(margin)) {
		return nil // the checkpoint is looked for again when the command is started
	}
	return fmt.Errorf("%s was written at %s, after %s %s at %s: it belongs to another training run", newest.Path, newest.Time.Format(time.DateTime), w.Folder.Dir(), how, last.Local().Format(time.DateTime))
}

// Claim tells other headroom processes where the command keeps its checkpoints, until release is
// called. If another process has already claimed that place, Claim returns a
// *[checkpoints.KeptElsewhereError] for a run that is continued; any other run goes on, but is only
// watched and never started again. A process that comes later is noted: what is written from then
// on may be its own.
func (w *Wrapped) Claim() (release func(), err error) {
	if w.Seen == nil {
		return func() {}, nil
	}
	held, err := checkpoints.Announce(w.Seen, w.Name(), w.joined) // also if it is not started again: it writes
	release = func() { _ = held.Close() }                         // the claim ends with the process in any case
	switch {
	case err != nil && w.before != nil:
		release()
		return nil, err
	case err != nil && w.Match != nil:
		w.Reporter.Warn("%v; this run is only watched, and will not be started again if it fails", err)
		w.Match, w.Why = nil, err
	}
	return release, nil
}

// joined records that another run has come that keeps its checkpoints in the same place:
// what is written from now on may be that run's. It is called before
// that run starts its command, and may be called from any goroutine.
func (w *Wrapped) joined(who string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.awaitList(); w.known.Shared != "" {
		return
	}
	w.known.Shared, w.known.Certain = who, checkpoints.Present(w.Seen)
	w.keep()
}

// wait waits until list has read the checkpoints and kept them.
func (w *Wrapped) wait() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.awaitList()
}

// awaitList waits for what list has found. The caller holds w.mu.
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

// made returns how many optimizer steps the newest attempt has made, or -1 if that is not known.
func (w *Wrapped) made() int {
	if w.Inside == nil {
		return -1
	}
	return w.Inside.Made()
}

// most returns the Most of a [checkpoints.Past].
func (w *Wrapped) most() int64 {
	if w.Match == nil || w.Match.Profile.Unit != profile.Steps || w.base < 0 {
		return 0
	}
	made := w.made()
	if made <= 0 {
		return 0
	}
	return int64(w.base) + 2*int64(made) + 100 // a framework may count steps that its optimizer skips
}

// baseOf returns the step with which an attempt begins that resumes from the given checkpoint, or
// -1 if that is not known.
func baseOf(m *rewrite.Match, from *checkpoint) int {
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

// newest returns the newest complete checkpoint of this run, or nil if there is none. Its Micro is
// the micro-batch that was in force when it was written, if an earlier process of this run recorded
// that. Otherwise Micro is the micro-batch that the user's command asks for.
func (w *Wrapped) newest() (*checkpoint, error) {
	if w.Match == nil || !w.attempted && !w.Begun.IsZero() { // nothing has been started, so nothing has been saved
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
	return &checkpoint{Path: found.Newest.Path, Step: int(found.Newest.Number), Time: found.Newest.Time, Micro: microAt(w.before, w.Asked, found.Newest.Time), Perhaps: found.Newest.Perhaps, found: found.Newest}, nil
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

// microAt returns the micro-batch that was in force at a given time, according to the
// journal of a run. asked is the plan with which that run began.
func microAt(journal []runs.Entry, asked recovery.Plan, at time.Time) int {
	for _, e := range slices.Backward(journal) {
		if e.Kind == runs.KindDecision && e.Plan != nil && !e.Time.After(at) {
			return e.Plan.Largest()
		}
	}
	return asked.Largest()
}

// keep writes down what is known. The caller holds w.mu.
func (w *Wrapped) keep() {
	if w.listed {
		w.set(w.known)
	}
}

func (w *Wrapped) set(k runs.Known) { _ = w.Folder.SetKnown(k) } // without it, the times of checkpoints decide after a resume

// wrote reports whether an earlier process of this run has seen the checkpoint c, as it is
// now, as one of the run.
func (w *Wrapped) wrote(c *checkpoint) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.ContainsFunc(w.known.Saved, func(m runs.Mark) bool { return m.Same(c.found.Mark()) })
}

// reject makes newest return checkpoints other than c, from which the command could not
// resume, until [Wrapped.judge] is called.
func (w *Wrapped) reject(c *checkpoint) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.doubted = append(w.doubted, c.found.Mark())
}

// judge ends the doubts about the checkpoints that were rejected. If bad is true, they are not
// chosen again in this run as long as they stay as they are; if not, they were not the reason.
func (w *Wrapped) judge(bad bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if bad {
		w.known.Failed = append(w.known.Failed, w.doubted...)
		w.keep()
	}
	w.doubted = nil
}
