package wrap

import (
	"fmt"
	"io"
	"sync/atomic"
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
	w.peer = false
	others, end := w.others()
	defer end()
	leaks := w.Inside != nil && w.resumes()
	every := hangEvery
	if leaks {
		every = leaksEvery
	}
	switch {
	case w.Hang > 0:
		every = min(every, max(time.Millisecond, w.Hang/4))
	case !leaks && others == nil:
		<-child.Done()
		return nil
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-child.Done():
			return own
		case ends := <-others:
			others, own = nil, w.endsWith(ends, child, own)
			continue
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

// hangWatch watches a command for a lack of any sign of life: no output, no kernel on its
// GPUs, no newer checkpoint. A collective that waits for a dead rank looks like that, but
// so does a long evaluation on the CPU. So a hang is only reported, unless the user wants
// a hanging command to be restarted.
type hangWatch struct {
	after time.Duration // how long without a sign of life counts as a hang; 0 to report none
	now   func() time.Time
	saved func() time.Time // when the newest checkpoint was written; zero if there is none

	sign atomic.Int64 // newest sign of life, in Unix nanoseconds
	gpu  atomic.Bool  // the command has used a GPU: without one, work cannot be told from a hang
	said bool         // the current hang has been reported
}

// alive records a sign of life. It may be called from any goroutine.
func (h *hangWatch) alive() { h.sign.Store(h.now().UnixNano()) }

// onGPU records that the command uses a GPU. If a kernel ran there, that is a sign of
// life.
func (h *hangWatch) onGPU(kernel bool) {
	h.gpu.Store(true)
	if kernel {
		h.alive()
	}
}

// hangs reports whether there has been no sign of life for too long. It returns true only
// once for each hang. It looks for a newer checkpoint last, because that reads the disk.
func (h *hangWatch) hangs() bool {
	if h.after <= 0 || !h.gpu.Load() {
		return false
	}
	now := h.now()
	quiet := func(since time.Time) bool { return now.Sub(since) >= h.after }
	if !quiet(time.Unix(0, h.sign.Load())) {
		h.said = false
		return false
	}
	if h.said || !quiet(h.saved()) {
		return false
	}
	h.said = true
	return true
}

// why says in words why the command counts as hanging.
func (h *hangWatch) why() string {
	return fmt.Sprintf("no output, no GPU work and no new checkpoint for %s", exits.Lasting(h.after.Seconds()))
}

// heard is a writer that calls note at each write, and passes the output on to log unless
// log is nil.
type heard struct {
	log  io.Writer
	note func()
}

func (h heard) Write(p []byte) (int, error) {
	h.note()
	if h.log == nil {
		return len(p), nil
	}
	return h.log.Write(p)
}

// leakWatch decides when to restart a leaking command: just after a checkpoint, if memory
// would run out before the next one. It serves one attempt, and reads no clock and no files.
type leakWatch struct {
	saved time.Time     // when the newest complete checkpoint of this attempt was written; zero if there is none
	every time.Duration // time from the checkpoint before that one, or from the beginning of the attempt, until saved
	told  time.Time     // the value of saved when due last returned true
	began time.Time     // when the attempt began
}

// due reports whether now is the time to restart the command. It returns true at most
// once for each checkpoint. complete holds the times at which the complete checkpoints
// were written, newest first, and runsOut is when memory will run out, or zero.
func (l *leakWatch) due(complete []time.Time, runsOut time.Time) bool {
	if len(complete) > 0 && complete[0].After(l.began) && complete[0].After(l.saved) {
		before := l.began
		if l.saved.After(before) { // the checkpoint of that time may have been deleted, and is then not in complete
			before = l.saved
		}
		for _, other := range complete[1:] {
			if other.After(before) && other.Before(complete[0]) {
				before = other
			}
		}
		l.saved, l.every = complete[0], complete[0].Sub(before)
	}
	if l.saved.IsZero() || runsOut.IsZero() || l.told.Equal(l.saved) {
		return false
	}
	next := l.saved.Add(l.every + l.every/leakMargin)
	if !runsOut.Before(next) {
		return false
	}
	l.told = l.saved
	return true
}

// leakMargin sets how late the next checkpoint may be: by 1/leakMargin of the time
// between checkpoints.
const leakMargin = 10

// why returns the reason for a restart in words. grown says what grows, and how fast.
func (l *leakWatch) why(grown string) string {
	return fmt.Sprintf("memory would run out before the next checkpoint, due about %s after the one at %s: %s",
		exits.Lasting(l.every.Seconds()), l.saved.Format(time.TimeOnly), grown)
}
