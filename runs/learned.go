package runs

import "headroom/recovery"

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
