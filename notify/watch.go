package notify

import (
	"time"

	"headroom/recovery"
	"headroom/runs"
)

// Kind says what a message is about.
type Kind string

// The kinds of messages.
const (
	Finished    Kind = "finished"    // the run has finished
	Failed      Kind = "failed"      // the run has ended without finishing: headroom gave up, or the command failed
	Interrupted Kind = "interrupted" // the run was stopped by a signal
	Survived    Kind = "survived"    // memory ran out for the first time, and the run goes on
	Leak        Kind = "leak"        // memory grows from step to step, and when it will run out is known
	Spill       Kind = "spill"       // steps have begun to use memory of the host, which is slower
	Test        Kind = "test"        // the user tries out a receiver
)

// Quiet is the time after a message in which there is no other of its kind.
const Quiet = 15 * time.Minute

// Watch knows which messages there have been about a run. The zero value is that of a new run. It is
// a value, and its methods are pure.
type Watch struct {
	finished, failed, interrupted, survived, leak, spill time.Time // of the newest message of that kind

	out string // what ran out of memory, until it is decided what to do about it
}

// After returns the watch over a run that has this journal, so that a run that is continued by another process gets no
// message twice.
func After(journal []runs.Entry) Watch {
	var w Watch
	for _, e := range journal {
		w, _, _ = w.Next(e)
	}
	return w
}

// Next returns the watch after e, and the message that is to be sent about e: its kind and what has happened, in one
// sentence. The kind is "" if there is to be none.
func (w Watch) Next(e runs.Entry) (_ Watch, k Kind, text string) {
	k, text = w.about(e)
	switch e.Kind {
	case runs.KindOOM:
		w.out = e.Text
	case runs.KindDecision:
		w.out = ""
	}
	at := w.newest(k)
	if at == nil || k == Survived && !at.IsZero() {
		return w, "", ""
	}
	if since := e.Time.Sub(*at); !at.IsZero() && since >= 0 && since < Quiet {
		return w, "", ""
	}
	*at = e.Time
	return w, k, text
}

// about returns the kind of message that e would be worth if it were the first one.
func (w Watch) about(e runs.Entry) (Kind, string) {
	switch e.Kind {
	case runs.KindDone:
		return Finished, e.Text
	case runs.KindFailed:
		if e.Decision != nil && e.Decision.Reason != "" {
			return Failed, e.Decision.Reason
		}
		return Failed, e.Text
	case runs.KindInterrupted:
		return Interrupted, e.Text
	case runs.KindSurvived:
		if e.InPlace != nil && e.InPlace.Way == runs.WaySpill && !w.survived.IsZero() {
			return Spill, e.Text
		}
		return Survived, e.Text
	case runs.KindDecision:
		if w.out != "" && e.Decision != nil && e.Decision.Remedy != recovery.Stop {
			return Survived, w.out + "; " + e.Text
		}
	case runs.KindWarning:
		return warned(e), e.Text
	}
	return "", ""
}

// warned returns the kind of message that a warning is worth, or "".
func warned(e runs.Entry) Kind {
	switch {
	case e.Holder != nil || e.Leaks:
		return Leak
	case e.Spilled > 0:
		return Spill
	}
	return ""
}

// newest returns where the time of the newest message of a kind is kept, or nil if there are none of it.
func (w *Watch) newest(k Kind) *time.Time {
	switch k {
	case Finished:
		return &w.finished
	case Failed:
		return &w.failed
	case Interrupted:
		return &w.interrupted
	case Survived:
		return &w.survived
	case Leak:
		return &w.leak
	case Spill:
		return &w.spill
	}
	return nil
}
