package runs

import (
	"fmt"
	"math"
	"path/filepath"
	"time"

	"headroom/memory"
	"headroom/recovery"
)

// Learned is the content of learned.json: what the run has learned about memory, and
// when. The next process uses it if this one is killed before it has saved the same
// information in a checkpoint.
type Learned struct {
	Attempt int              `json:"attempt"`
	Step    int              `json:"step"` // optimizer steps finished
	Learned recovery.Learned `json:"learned"`

	// Pieces is how many rows a worker inside a wrapped process may run at once; 0 if
	// the process never ran out of memory.
	Pieces int `json:"pieces,omitempty"`

	// Found is what a trial found before the run; nil if there was none.
	Found *Found `json:"found,omitempty"`
}

// Found is how many rows of a batch a command's training step can be run on at once, as a trial has found.
type Found struct {
	Key     string       `json:"key"`               // of what was tried: the command, the device and versions
	Rows    int          `json:"rows"`              // of the command's own batch
	Largest int          `json:"largest"`           // the largest number of rows that was run
	Micro   int          `json:"micro,omitempty"`   // rows to run at once; 0 is the whole batch
	Why     string       `json:"why,omitempty"`     // why the batch must stay whole, or ""
	Free    memory.Bytes `json:"free,omitempty"`    // on the GPU with the least, before the trial; 0 without a GPU
	Seconds float64      `json:"seconds,omitempty"` // that the trial took
	Time    time.Time    `json:"time"`
}

// String says what was found.
func (f Found) String() string {
	switch {
	case f.Micro > 0:
		return fmt.Sprintf("batches of %d rows are run in pieces of at most %d, as %d is the largest number that fits", f.Rows, f.Micro, f.Largest)
	case f.Largest < f.Rows && f.Why != "":
		return fmt.Sprintf("a batch of %d rows does not fit, %d do, and it cannot be run in pieces: %s", f.Rows, f.Largest, f.Why)
	}
	return fmt.Sprintf("a batch of %d rows fits as a whole", f.Rows)
}

// freeChanged is by what share the free memory of a GPU may differ from what it was when something was found.
const freeChanged = 0.05

// FindFound returns the newest of what runs in dirs have found for a key with about as much memory free, and the folder of that
// run. It returns nil if there is none. Folders that cannot be read are left out.
func FindFound(dirs []string, key string, free memory.Bytes) (newest *Found, dir string) {
	for _, d := range dirs {
		l, err := readJSON[Learned](filepath.Join(d, "learned.json"))
		if err != nil || l == nil || l.Found == nil || l.Found.Key != key {
			continue
		}
		if math.Abs(float64(l.Found.Free-free)) > freeChanged*float64(free) {
			continue
		}
		if newest == nil || l.Found.Time.After(newest.Time) {
			newest, dir = l.Found, d
		}
	}
	return newest, dir
}

// Since reports whether l is at least as new as checkpoint c, which may be nil.
func (l *Learned) Since(c *Checkpoint) bool {
	return c == nil || l.Attempt > c.Attempt || l.Attempt == c.Attempt && l.Step >= c.Step
}

// SetLearned replaces learned.json, whole or not at all. A power failure may lose the
// file, which costs another search and nothing else.
func (f *Folder) SetLearned(l Learned) error { return f.setJSON("learned.json", l, &f.learned) }

// Learned reads learned.json. It returns nil without an error if there is no such file.
func (f *Folder) Learned() (*Learned, error) { return readJSON[Learned](f.path("learned.json")) }
