package job

import "headroom/memory"

const (
	// evaluations is how many numbers of rows are tried without gradients at most, and timesMost how many times as many rows as a step
	// can be made on.
	evaluations, timesMost = 3, 16
	// nearly is the share of the estimated rows that is tried first.
	nearly = 0.97
)

// EvaluationRows is how many rows an evaluation's batch can have.
type EvaluationRows struct {
	Largest int          `json:"largest"` // the largest number of rows that was run
	Peak    memory.Bytes `json:"peak"`
	More    bool         `json:"more"` // no larger number was tried than timesMost allows
}

// evaluation finds how many rows the forward passes can be made on without gradients: from what they take on the largest number
// that a step can be made on. It returns nil if that is not known; nothing else depends on it.
func (s *rowSeeker) evaluation(f *FoundRows) *EvaluationRows {
	if !s.evaluates || f.Largest < 1 {
		return nil
	}
	var e *EvaluationRows
	always := s.trials.Held + f.Gradients
	most, rows, fails := min(rowsMost, timesMost*f.Largest), f.Largest, 0
	for range evaluations {
		t, err := s.evaluate(s.ctx, rows, s.most)
		if err != nil {
			break
		}
		next := most
		if t.Fits {
			e = &EvaluationRows{Largest: rows, Peak: t.Peak, More: rows == most}
			if each := float64(t.Peak-always) / float64(rows); each > 0 {
				next = min(most, int(nearly*float64(f.Available-always)/each))
			}
		} else {
			fails = rows
		}
		switch {
		case fails > 0 && e != nil:
			next = min(next, (e.Largest+fails)/2)
		case fails > 0:
			next = fails / 2
		}
		if next < 1 || e != nil && float64(next)*nearly <= float64(e.Largest) {
			break
		}
		rows = next
	}
	return e
}
