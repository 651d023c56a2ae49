package search

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/bits"

	"headroom/memory"
)

// Options bound a search. The zero value of every field but Max is usable.
type Options struct {
	Min        int          // smallest size to consider; 0 means 1
	Max        int          // largest size to consider
	MultipleOf int          // sizes are multiples of it; 0 means 1
	Capacity   memory.Bytes // what there is; 0 if not known
	Headroom   float64      // share of Capacity that Recommended leaves unused, in [0, 1); Largest takes it as given
	Tolerance  int          // Fits may be this many samples below the largest that fits; the search starts as many above Min
	Confirm    int          // times the answer is probed once more at the end; 0 means 2
}

// Probe is one trial.
type Probe struct {
	N    int          `json:"n"`
	Peak memory.Bytes `json:"peak"` // measured, or the least that would have been needed if it did not fit
	Fits bool         `json:"fits"`
}

// Line is peak memory as a function of the size: Base + PerSample·n bytes.
type Line struct {
	Base      float64 `json:"base"`
	PerSample float64 `json:"per_sample"`
}

// At is the peak of n samples by the line, in bytes.
func (l Line) At(n int) float64 { return l.Base + l.PerSample*float64(n) }

// Result is what a search found.
type Result struct {
	Fits        int     `json:"fits"`            // largest size that fitted; 0 if none did
	Fails       int     `json:"fails,omitempty"` // smallest size that did not fit; 0 if none failed
	Recommended int     `json:"recommended"`     // largest size expected to leave the headroom; has been probed; 0 if none
	Line        Line    `json:"line"`            // fitted to the probes that fitted; zero if fewer than two sizes did
	Probes      []Probe `json:"probes"`          // in the order they were made, confirmations included
	Searched    int     `json:"searched"`        // Probes[Searched:] were made after the search was over, to confirm
}

// ErrNothingFits is returned when not even Min fits.
var ErrNothingFits = errors.New("not even the smallest micro-batch fits")

// Bound is the largest number of probes that a search with these options makes
// before it confirms: ⌈log₂ K⌉+2, where K is the number of sizes to choose
// from. K is Max/Min where Min is MultipleOf, as it is by default. It is 0 if
// the options are not valid.
func (o Options) Bound() int {
	g, err := newGrid(o)
	if err != nil {
		return 0
	}
	return bits.Len(uint(g.sizes()-1)) + 2
}

// Largest finds the largest size that fits and the largest that leaves the
// headroom.
//
// probe tries one size and returns its peak memory, in bytes, 0 if it cannot be
// known. It is called from this goroutine, never twice at once. Its error is a
// *memory.OutOfMemory, or wraps one, if the size did not fit; any other error
// ends the search.
//
// The search makes at most [Options.Bound] probes. Then Fits and, after it,
// Recommended are probed Confirm times each, or Confirm times if they are one
// size. What happens when that fails is said in the package comment.
//
// The error is nil, or wraps [ErrNothingFits], the error of ctx or the error of
// probe, or says what is wrong with the options. The Result holds what is known
// so far in every case; only with a nil error have its sizes been confirmed.
func Largest(ctx context.Context, o Options, probe func(ctx context.Context, n int) (memory.Bytes, error)) (Result, error) {
	g, err := newGrid(o)
	if err != nil {
		return Result{}, err
	}
	if o.Confirm == 0 {
		o.Confirm = 2
	}
	s := &searcher{
		grid: g, options: o, ctx: ctx, probe: probe,
		lo: g.first - 1, hi: g.last + 1, left: o.Bound(),
	}
	err = s.narrow()
	searched := len(s.probes)
	if err == nil {
		err = s.settle()
	}
	return s.result(searched), err
}

// grid numbers the sizes: size k·unit has the number k.
type grid struct{ unit, first, last, slack int }

func (g grid) sizes() int { return g.last - g.first + 1 }

func newGrid(o Options) (grid, error) {
	var wrong []error
	check := func(ok bool, key string, value any, allowed string) {
		if !ok {
			wrong = append(wrong, fmt.Errorf("search: %s is %v: allowed is %s", key, value, allowed))
		}
	}
	check(o.Min >= 0, "minimum", o.Min, "1 or more, or 0 for 1")
	check(o.Max >= max(1, o.Min), "maximum", o.Max, fmt.Sprintf("the minimum, %d, or more", max(1, o.Min)))
	check(o.Max <= math.MaxInt32, "maximum", o.Max, fmt.Sprint("at most ", math.MaxInt32))
	check(o.MultipleOf >= 0, "multiple-of", o.MultipleOf, "1 or more, or 0 for 1")
	check(o.Capacity >= 0, "capacity", o.Capacity, "more than 0, or 0 if not known")
	check(o.Headroom >= 0 && o.Headroom < 1, "headroom", o.Headroom, "0 or more and less than 1")
	check(o.Tolerance >= 0, "tolerance", o.Tolerance, "0 or more")
	check(o.Confirm >= 0, "confirm", o.Confirm, "1 or more, or 0 for 2")
	if wrong != nil {
		return grid{}, errors.Join(wrong...)
	}
	unit := max(1, o.MultipleOf)
	g := grid{unit: unit, first: (max(1, o.Min)-1)/unit + 1, last: o.Max / unit, slack: o.Tolerance / unit}
	if g.last < g.first {
		return grid{}, fmt.Errorf("search: no multiple of %d lies between the minimum, %d, and the maximum, %d: lower multiple-of or raise the maximum",
			unit, max(1, o.Min), o.Max)
	}
	return g, nil
}
