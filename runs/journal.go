package runs

import (
	"path/filepath"
	"slices"
	"time"

	"headroom/memory"
	"headroom/recovery"
	"headroom/search"
)

// Kind says what an [Entry] of the journal is about.
type Kind string

// The kinds of entries.
const (
	KindRun              Kind = "run"               // a run starts in a new folder
	KindAttempt          Kind = "attempt"           // an attempt starts, from step 0 or a checkpoint
	KindPlan             Kind = "plan"              // the first plan of an attempt
	KindOOM              Kind = "oom"               // a step or the load ran out of memory
	KindDecision         Kind = "decision"          // what was decided, and why
	KindProbe            Kind = "probe"             // one trial of a search
	KindSearch           Kind = "search"            // a search ended
	KindCheckpoint       Kind = "checkpoint"        // a checkpoint is whole on disk
	KindCheckpointFailed Kind = "checkpoint failed" // a checkpoint could not be written, and why; older ones are untouched
	KindReleased         Kind = "released"          // older checkpoints made room for a new one on a full disk
	KindDamaged          Kind = "damaged"           // a damaged checkpoint was set aside
	KindMissing          Kind = "missing"           // somebody removed a file or a checkpoint of the run
	KindExit             Kind = "exit"              // a wrapped command ended, and how
	KindLeft             Kind = "left"              // what a wrapped command left running when it ended, or what of that was ended
	KindInterrupted      Kind = "interrupted"       // the run was stopped by a signal, and can be resumed
	KindWarning          Kind = "warning"           // something that may go wrong later with a wrapped command, noticed at its start
	KindRemedy           Kind = "remedy"            // the outcome of a remedy: bytes given back, time waited
	KindJournalFailed    Kind = "journal failed"    // the journal could not be written for a while, and why
	KindDone             Kind = "done"              // the job finished
	KindFailed           Kind = "failed"            // the run ended without finishing
	KindDevice           Kind = "device"            // the condition of the device, read from outside at intervals
	KindFault            Kind = "fault"             // the device's driver reported an error, such as an Xid
	KindGone             Kind = "gone"              // the device was lost; a decision follows
	KindSurvived         Kind = "survived"          // a step ran out of memory inside a wrapped process and was finished there; the entry has the failure and what was done
	KindRefused          Kind = "refused"           // the worker inside a wrapped process left an out-of-memory failure to the command's own code, and why
	KindCommand          Kind = "command"           // what a wrapped command was recognised as, and where its checkpoints are
	KindMemory           Kind = "memory"            // what the memory of a wrapped command's process was held for at one moment
	KindWorker           Kind = "worker"            // any other message of that worker, such as that it is attached, or why it is not
)

// UnmarshalText reads a kind. Earlier versions wrote "lost" for [KindGone].
func (k *Kind) UnmarshalText(text []byte) error {
	if *k = Kind(text); *k == "lost" {
		*k = KindGone
	}
	return nil
}

// Entry is one line of journal.jsonl.
type Entry struct {
	Time     time.Time                `json:"time"`
	Attempt  int                      `json:"attempt"`
	Step     int                      `json:"step"` // optimizer steps finished at that moment
	Kind     Kind                     `json:"kind"`
	Text     string                   `json:"text"` // one sentence for a person
	Plan     *recovery.Plan           `json:"plan,omitempty"`
	OOM      *memory.OutOfMemoryError `json:"oom,omitempty"`
	Verdict  *memory.Verdict          `json:"verdict,omitempty"`
	Decision *recovery.Decision       `json:"decision,omitempty"`
	Probe    *search.Probe            `json:"probe,omitempty"`
	Search   *search.Result           `json:"search,omitempty"`
	Memory   *memory.Stats            `json:"memory,omitempty"`
	Device   *Reading                 `json:"device,omitempty"`
	Fault    *Fault                   `json:"fault,omitempty"`
	Version  string                   `json:"version,omitempty"` // version of headroom that runs the attempt
	Seconds  float64                  `json:"seconds,omitempty"` // how long this took, where that matters

	// Path is where a wrapped command's own checkpoint is.
	Path string `json:"path,omitempty"`
	// InStep is the optimizer step in which a failure inside a wrapped command's
	// process happened. Steps count from 1 in each process; 0 means that the step is
	// not known.
	InStep int `json:"in_step,omitempty"`

	// Mixed says how a refused step's result was seen to depend on which rows are in a batch
	// together, so that smaller micro-batches would train something else.
	Mixed string `json:"mixed,omitempty"`

	// Where is the line of the user's own code, as file:line, at which memory ran out inside a
	// wrapped command's process.
	Where string `json:"where,omitempty"`
	// NotFinite names the value that was NaN or infinite, such as "loss", and Unproven the conditions
	// under which the training could have continued, if the user had vouched for them. They are facts
	// about the end of a run, in an entry of [KindFailed].
	NotFinite string   `json:"not_finite,omitempty"`
	Unproven  []string `json:"unproven,omitempty"`

	// InPlace says how a failure was survived inside a process, in an entry of [KindSurvived].
	InPlace *InPlace `json:"in_place,omitempty"`
	// Refusal says why a failure was left to the command's own code, in an entry of [KindRefused].
	Refusal *Refusal `json:"refusal,omitempty"`
	// Attached describes the process to which a worker is attached, in an entry of [KindWorker].
	Attached *Attached `json:"attached,omitempty"`

	// Holder is what holds memory that grows in a wrapped command's process, in an entry of
	// [KindWarning], or of [KindWorker] if it was known only once memory had run out.
	Holder *memory.Holder `json:"holder,omitempty"`

	// Leaks marks the forecast that memory which is held between steps will run out, in an entry of
	// [KindWarning]. Spilled is how much of the host's memory a step used in place of the GPU's.
	Leaks   bool         `json:"leaks,omitempty"`
	Spilled memory.Bytes `json:"spilled,omitempty"`

	// Breakdown is what a memory was held for, in an entry of [KindMemory].
	Breakdown *memory.Breakdown `json:"breakdown,omitempty"`

	// Repeated marks a further out-of-memory failure of a step that has failed before
	// and has not been finished since. Only the first failure counts.
	Repeated bool `json:"repeated,omitempty"`

	// Final marks an entry whose content the user is told at the end of the run anyway,
	// so that it need not be printed earlier.
	Final bool `json:"final,omitempty"`
}

// Failed reports whether an entry counts as an out-of-memory failure.
func (e Entry) Failed() bool {
	return (e.Kind == KindOOM || e.Kind == KindSurvived) && !e.Repeated
}

// Record appends e to the journal. If anything depends on e, it returns only once e and
// all entries before it are safely on disk. It does not wait for an entry that only
// people read: the start of the run or of an attempt, a warning, the exit of a command,
// what it left running, what it was recognised as, the end of the job, an account of memory, or a message from a worker. Such
// an entry survives the end of this process, but a power loss may destroy it until the
// next entry of another kind, or Close, syncs it to the disk. After an error, e is kept
// in memory and written by a later Record, Flush or Close, in order. Only when more than
// 16 MiB are waiting are the oldest entries dropped.
func (f *Folder) Record(e Entry) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.journal.add(e); err != nil {
		return err
	}
	f.tally.count(e)
	err := f.writeJournal(!e.Kind.transient())
	if err == nil && f.journal.first == nil {
		f.journal.begins(e)
	}
	return err
}

// transient reports whether entries of this kind may be lost in a power loss, because
// only people read them.
func (k Kind) transient() bool {
	return k == KindRun || k == KindAttempt || k == KindWarning || k == KindExit || k == KindLeft || k == KindDone || k == KindCommand || k == KindMemory || k == KindWorker
}

// LostEntries returns how many entries were dropped because the journal could not be
// written and too many entries were waiting.
func (f *Folder) LostEntries() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.journal.lost
}

// ReadJournal reads the journal of the run in dir. It needs no lock, so it may be used
// while the run is writing. Lines that cannot be read are left out. The error is then a
// *[TornError], and the entries returned with it are valid. A folder without a journal
// has no entries.
func ReadJournal(dir string) ([]Entry, error) {
	return readLines[Entry](filepath.Join(dir, "journal.jsonl"))
}

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
