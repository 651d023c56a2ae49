package runs

import "slices"

// mostAttempts is more attempts than any run makes: an entry with a larger number is
// damaged.
const mostAttempts = 1 << 31

// faultsNamed bounds how many faults a tally names.
const faultsNamed = 5

// Tally sums up what the journal says about the run as a whole, over all its processes.
type Tally struct {
	Attempts   int  // number of the newest attempt
	Failures   int  // out-of-memory failures, by [Entry.Failed]
	Gone       int  // how many times the device was lost
	Checkpoint int  // step of the newest checkpoint written; -1 if there was none
	Newest     Kind // of the newest entry

	// These are counted since the run last made progress, which means that it saved a
	// checkpoint or ended. An end counts because whoever starts the run again may have
	// checked the machine first. Being killed does not count as ending.
	GoneSince int
	Faults    []string // of the device, each once
}

// Tally returns a copy of the tally of all journal entries so far.
func (f *Folder) Tally() Tally {
	f.mu.Lock()
	defer f.mu.Unlock()
	t := f.tally
	t.Faults = slices.Clone(t.Faults)
	return t
}

// count adds an entry to the tally. It ignores an attempt number that can only come
// from a damaged line.
func (t *Tally) count(e Entry) {
	if e.Attempt < mostAttempts {
		t.Attempts = max(t.Attempts, e.Attempt)
	}
	t.Newest = e.Kind
	if e.Failed() {
		t.Failures++
	}
	switch e.Kind {
	case KindGone:
		t.Gone++
		t.GoneSince++
	case KindFault:
		if len(t.Faults) < faultsNamed && !slices.Contains(t.Faults, e.Text) {
			t.Faults = append(t.Faults, e.Text)
		}
	case KindCheckpoint:
		t.Checkpoint = e.Step
	}
	switch e.Kind {
	case KindCheckpoint, KindDone, KindFailed, KindInterrupted:
		t.GoneSince, t.Faults = 0, nil
	}
}
