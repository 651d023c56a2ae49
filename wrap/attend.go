package wrap

import (
	"fmt"
	"time"

	"headroom/wrap/checkpoints"
	"headroom/wrap/child"
	"headroom/wrap/exits"
)

// byUs returns the outcome of an attempt that headroom ended.
func byUs(kind exits.Kind, why string) *exits.Outcome {
	return &exits.Outcome{Kind: kind, Confidence: exits.Certain, Reasons: []string{why}, Rank: -1, Device: -1}
}

// attend waits for the child to end. Meanwhile it checks whether the child hangs, and
// whether memory would run out before the next checkpoint. In either case, attend ends
// the child if w allows it. own is the outcome if attend ended the child, and nil
// otherwise.
func (w *Wrapped) attend(child *child.Child, hang *hangWatch, leak *leakWatch) (own *exits.Outcome) {
	leaks := w.Inside != nil && w.resumes()
	every := hangEvery
	if leaks {
		every = leaksEvery
	}
	switch {
	case w.Hang > 0:
		every = min(every, max(time.Millisecond, w.Hang/4))
	case !leaks:
		<-child.Done()
		return nil
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-child.Done():
			return own
		case <-tick.C:
		}
		if own != nil {
			continue // the child has already been asked to end
		}
		if leaks {
			own = w.leaks(leak)
		}
		if own == nil && hang.hangs() {
			own = w.hangs(hang, child.Pid())
		}
		if own != nil {
			child.Stop()
		}
	}
}

// hangs returns the outcome of a hanging command that is to be ended. If w.Restart is not
// set, it only reports the hang, and returns nil.
func (w *Wrapped) hangs(watch *hangWatch, pid int) *exits.Outcome {
	if !w.Restart {
		w.trouble(fmt.Errorf("%s: the command may be hanging; py-spy dump --pid %d shows where it is stuck, and --restart-hung would start it again from its newest checkpoint", watch.why(), pid))
		return nil
	}
	return byUs(exits.Hung, watch.why())
}

// leaks returns the outcome of a leaking command if now is the time to end it, and nil if
// not. If w.Leave is not set, it only reports the leak, and returns nil.
func (w *Wrapped) leaks(watch *leakWatch) *exits.Outcome {
	at, grown := w.Inside.RunsOut()
	if at.IsZero() && watch.saved.IsZero() { // do not look for checkpoints, which reads the disk
		return nil
	}
	if !watch.due(w.complete(), at) {
		return nil
	}
	if !w.Leave {
		w.trouble(fmt.Errorf("%s; --restart-leaking would start the command again just after a checkpoint", watch.why(grown)))
		return nil
	}
	return byUs(exits.Leaking, watch.why(grown))
}

const (
	hangEvery  = 15 * time.Second // how often to check whether the command hangs
	leaksEvery = 2 * time.Second  // how often to check whether it leaks: a restart loses the steps since the checkpoint
)

// lastSaved returns when the newest checkpoint, complete or not, was last written to. It
// returns the zero time if there is none.
func (w *Wrapped) lastSaved() time.Time {
	if w.Match == nil {
		return time.Time{}
	}
	found, err := checkpoints.Find(w.Match, time.Now(), w.past())
	if err != nil || len(found.All) == 0 {
		return time.Time{}
	}
	return found.All[0].Time
}

// complete returns when each complete checkpoint was written, newest first.
func (w *Wrapped) complete() (all []time.Time) {
	past := w.past()
	past.Still = w.seen
	found, err := checkpoints.Find(w.Match, time.Now(), past)
	if err != nil {
		return nil
	}
	w.seen = found.Marks()
	for _, c := range found.All {
		if c.Problem == "" {
			all = append(all, c.Time)
		}
	}
	return all
}
