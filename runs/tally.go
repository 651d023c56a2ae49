package runs

import "slices"

// mostAttempts is more than any run makes: a larger number is damage.
const mostAttempts = 1 << 31

// faultsNamed bounds how many faults a tally names.
const faultsNamed = 5

// Tally is what the journal says about the run as a whole, over all its processes.
type Tally struct {
	Attempts   int  // number of the newest attempt
	Failures   int  // out-of-memory failures, by [Entry.Failed]
	Gone       int  // how many times the device was lost
	Checkpoint int  // step of the newest checkpoint written; -1 if there was none
	Newest     Kind // of the newest entry

	// Counted since the run last made progress: it saved a checkpoint, or it
	// ended, so that whoever starts it again may have checked the machine. Being
	// killed does not count as ending.
	GoneSince int
	Faults    []string // of the device, each once
}

// Tally is what the journal says so far.
func (f *Folder) Tally() Tally {
	f.mu.Lock()
	defer f.mu.Unlock()
	t := f.tally
	t.Faults = slices.Clone(t.Faults)
	return t
}

// count adds an entry to the tally. A damaged line may hold any number.
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
