package job

import (
	"errors"
	"math"
	"slices"
	"sort"

	"headroom/memory"
	"headroom/recovery"
	"headroom/worker"
)

// RowsElsewhere is how many rows a training step can be run on with another amount of memory.
type RowsElsewhere struct {
	Name        string        `json:"name"`        // as it was asked for
	Memory      memory.Bytes  `json:"memory"`      // that a device of that name has
	Available   memory.Bytes  `json:"available"`   // of it, to the process
	Largest     int           `json:"largest"`     // the largest number of rows that fits; 0 if none does, or if that is not known
	Recommended recovery.Plan `json:"recommended"` // zero if Largest is
	Estimated   bool          `json:"estimated"`   // it was not run, as this device has less memory
	Why         string        `json:"why,omitempty"`
}

// ErrOnHost means that a command trains on the CPU, and was asked about a GPU.
var ErrOnHost = errors.New("the command trains on the CPU: what it needs on a GPU is not known")

const (
	// triesElsewhere is how many numbers of rows are tried in a smaller memory. stepElsewhere is how far apart they are, but for the last.
	triesElsewhere = 4
	stepElsewhere  = 0.02
	// straightRows is from how many rows on a line through a half, three quarters and all of them is one, and bend is how much its
	// slopes may differ.
	straightRows = 8
	bend         = 0.05
	// margin is what an estimate leaves, as a share of the rows.
	margin = 0.01
)

// room returns how much of a card's memory the process could hold.
func (s *rowSeeker) room(card memory.Card) memory.Bytes { return card.Memory - s.trials.Beside }

// limit makes the largest memory that is asked for the one that trials have, if this device has more. It returns an error if a GPU
// is asked for and the step is made on the CPU.
func (s *rowSeeker) limit() error {
	var most memory.Bytes
	for _, card := range s.within {
		if _, gpu := memory.FindCard(card.Name); gpu && s.trials.Device == "cpu" {
			return ErrOnHost
		}
		most = max(most, s.room(card))
	}
	if len(s.within) > 0 && most < s.trials.Capacity {
		s.most = max(1, most)
	}
	return nil
}

// elsewhere returns how many rows the step can be run on in the memory of a card: tried, unless this device has less.
func (s *rowSeeker) elsewhere(f *FoundRows, card memory.Card, headroom float64) (RowsElsewhere, error) {
	e := RowsElsewhere{Name: card.Name, Memory: card.Memory, Available: max(0, s.room(card))}
	var err error
	switch {
	case e.Available == f.Available:
		e.Largest = f.Largest
	case e.Available < f.Available:
		e.Largest, err = s.smaller(f, e.Available)
		if e.Largest == 0 {
			e.Why = "not even a few rows fit"
		}
	default:
		e.Estimated = true
		e.Largest, e.Why, err = s.larger(f, e.Available)
	}
	if e.Largest > 0 {
		most := f.leaving(e.Largest, headroom, e.Available)
		f.Tried = s.tried
		e.Recommended = f.plan(most)
	}
	return e, err
}

// usable returns how much of a memory steps can use, in bytes: of the memory here, no more than what failed.
func (f *FoundRows) usable(available memory.Bytes) float64 {
	if f.Fails == 0 || f.Line.PerSample <= 0 {
		return float64(available)
	}
	return float64(available) * min(1, f.Line.At(f.Fails)/float64(f.Available))
}

// smaller returns the largest number of rows that was run in less memory than has been searched: the first that fits of a few from
// the line downwards. It returns 0 if none did.
func (s *rowSeeker) smaller(f *FoundRows, available memory.Bytes) (int, error) {
	if available <= s.trials.Held {
		return 0, nil
	}
	least := min(2, s.trials.Rows)
	first, last := f.within(f.Largest, f.usable(available)), 0
	for i := range triesElsewhere {
		rows := first - int(math.Ceil(stepElsewhere*float64(first)*float64(i)))
		if i == triesElsewhere-1 { // no line at all
			rows = first / 2
		}
		if rows = max(least, rows); rows == last {
			continue
		}
		last = rows
		t, err := s.made(rows, available)
		if err != nil {
			return 0, err
		}
		if t.Fits {
			s.keep(t)
			return rows, nil
		}
	}
	return 0, nil
}

// keep adds a trial that fitted to those that are known.
func (s *rowSeeker) keep(t worker.Trial) {
	if !slices.ContainsFunc(s.tried, func(o worker.Trial) bool { return o.Rows == t.Rows }) {
		s.tried = append(s.tried, t)
	}
}

// larger estimates the largest number of rows that fits into more memory than there is here, or says why it cannot. Memory has to
// be seen to grow in a straight line; what little that line bends upwards, it is taken to go on bending.
func (s *rowSeeker) larger(f *FoundRows, available memory.Bytes) (rows int, why string, err error) {
	if f.Largest < straightRows {
		return 0, "too few rows fit here to tell", nil
	}
	var x, y [3]float64
	for i, rows := range []int{f.Largest / 2, f.Largest * 3 / 4, f.Largest} {
		at := slices.IndexFunc(s.tried, func(t worker.Trial) bool { return t.Rows == rows && t.Fits })
		if at < 0 {
			t, err := s.made(rows, s.most)
			if err != nil {
				return 0, "", err
			}
			if !t.Fits {
				return 0, "the same number of rows does not always fit", nil
			}
			at, s.tried = len(s.tried), append(s.tried, t)
		}
		x[i], y[i] = float64(s.tried[at].Rows), float64(s.tried[at].Peak)
	}
	low, high := (y[1]-y[0])/(x[1]-x[0]), (y[2]-y[1])/(x[2]-x[1])
	if high <= 0 || math.Abs(high-low) > bend*high {
		return 0, "memory does not grow in a straight line with the rows", nil
	}
	slope, curve := max(low, high), max(0, high-low)/(x[2]-x[0])
	more := sort.Search(rowsMost-f.Largest, func(n int) bool {
		beyond := float64(n + 1)
		return y[2]+slope*beyond+curve*beyond*(beyond+x[2]-x[1]) > f.usable(available)
	})
	return max(f.Largest, int((1-margin)*float64(f.Largest+more))), "", nil
}
