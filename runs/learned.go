package runs

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"

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
}

// Since reports whether l is at least as new as checkpoint c, which may be nil.
func (l *Learned) Since(c *Checkpoint) bool {
	return c == nil || l.Attempt > c.Attempt || l.Attempt == c.Attempt && l.Step >= c.Step
}

// SetLearned replaces learned.json, whole or not at all. A power failure may lose the
// file, which costs another search and nothing else.
func (f *Folder) SetLearned(l Learned) error {
	text, err := json.MarshalIndent(l, "", "  ")
	if err != nil {
		return fmt.Errorf("write learned.json: %w", err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.learned = append(text, '\n')
	return f.kept(func() error { return writeFile(f.disk, f.path("learned.json"), f.learned, false) })
}

// Learned reads learned.json. It returns nil without an error if there is no such file.
func (f *Folder) Learned() (*Learned, error) {
	text, err := os.ReadFile(f.path("learned.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var l Learned
	if err == nil {
		err = json.Unmarshal(text, &l)
	}
	if err != nil {
		return nil, fmt.Errorf("read learned.json: %w", err)
	}
	return &l, nil
}
