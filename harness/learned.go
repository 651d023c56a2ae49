package harness

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"go.uber.org/zap"
)

// learnedFile is learned.json: what was learned, and when. It is there for a
// process that is killed before a checkpoint tells the next one.
type learnedFile struct {
	Attempt int     `json:"attempt"`
	Step    int     `json:"step"` // optimizer steps finished
	Learned Learned `json:"learned"`
}

// since tells whether l is as new as checkpoint c, which may be nil.
func (l *learnedFile) since(c *Checkpoint) bool {
	return c == nil || l.Attempt > c.Attempt || l.Attempt == c.Attempt && l.Step >= c.Step
}

// setLearned replaces learned.json, whole or not at all. A loss of power may
// take it: that costs another search and nothing else.
func (f *Folder) setLearned(l learnedFile) error {
	text, err := json.MarshalIndent(l, "", "  ")
	if err != nil {
		return fmt.Errorf("write learned.json: %w", err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return writeFile(f.disk, f.path("learned.json"), append(text, '\n'), false)
}

// learned reads learned.json, nil if there is none.
func (f *Folder) learned() (*learnedFile, error) {
	text, err := os.ReadFile(f.path("learned.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var l learnedFile
	if err == nil {
		err = json.Unmarshal(text, &l)
	}
	if err != nil {
		return nil, fmt.Errorf("read learned.json: %w", err)
	}
	return &l, nil
}

// beginHistory starts the history with what earlier processes learned: as the
// checkpoint has it, or learned.json if that is newer.
func (r *runner) beginHistory(from *Checkpoint) {
	r.planned, r.history = true, NewHistory(r.o.Plan)
	kept, err := r.f.learned()
	if err != nil {
		r.log.Warn("only what the newest checkpoint tells of earlier searches is known", zap.Error(err))
	}
	switch {
	case kept != nil && kept.since(from):
		r.history = r.history.Resume(kept.Learned, r.o.Precision)
	case from != nil:
		r.history = r.history.Resume(from.Learned, r.o.Precision)
	}
	r.kept = r.history.Learned(r.o.Plan, r.o.Precision)
}

// keepLearned writes learned.json after a lasting change of plan. A plan grown
// to is kept once it has run: should it take the process down, the next one is
// not to begin with it.
func (r *runner) keepLearned() {
	now := r.history.Learned(r.o.Plan, r.o.Precision)
	if r.history.grown > 0 || now.Micro == r.kept.Micro && now.Recompute == r.kept.Recompute {
		return
	}
	r.kept = now
	if err := r.f.setLearned(learnedFile{Attempt: r.number, Step: r.step, Learned: now}); err != nil {
		r.log.Warn("what was learned is not kept before the next checkpoint", zap.Error(err))
	}
}
