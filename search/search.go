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
	Min      int          // smallest size to consider; 0 means 1
	Max      int          // largest size to consider
	Capacity memory.Bytes // memory available to a probe; 0 if not known
	Headroom float64      // share of Capacity that Recommended leaves unused, in [0, 1); 0 leaves nothing unused
	Confirm  int          // how many more times the answer is probed at the end; 0 means 2
}

// Bound returns the largest number of probes that a search with these options makes
// before it confirms: ⌈log₂ K⌉+2, where K is the number of sizes to choose from. It
// returns 0 if the options are not valid.
func (o Options) Bound() int {
	if o.check() != nil {
		return 0
	}
	return bits.Len(uint(o.Max-max(1, o.Min))) + 2
}

// check returns an error that names everything wrong with the options, or nil.
func (o Options) check() error {
	var wrong []error
	check := func(ok bool, key string, value any, allowed string) {
		if !ok {
			wrong = append(wrong, fmt.Errorf("search: %s is %v; allowed: %s", key, value, allowed))
		}
	}
	check(o.Min >= 0, "minimum", o.Min, "0 or more; 0 means 1")
	check(o.Max >= max(1, o.Min), "maximum", o.Max, fmt.Sprintf("the minimum, %d, or more", max(1, o.Min)))
	check(o.Max <= math.MaxInt32, "maximum", o.Max, fmt.Sprint("at most ", math.MaxInt32))
	check(o.Capacity >= 0, "capacity", o.Capacity, "more than 0, or 0 if not known")
	check(o.Headroom >= 0 && o.Headroom < 1, "headroom", o.Headroom, "0 or more and less than 1")
	check(o.Confirm >= 0, "confirm", o.Confirm, "0 or more; 0 means 2")
	return errors.Join(wrong...)
}

// ErrNothingFits is returned when not even Min fits.
var ErrNothingFits = errors.New("not even the smallest micro-batch fits")

// Largest finds the largest size that fits and the largest that leaves the headroom.
//
// probe tries one size and returns its peak memory in bytes, or 0 if the peak cannot
// be known. It is called only from the goroutine that calls Largest. If the size did
// not fit, the error of probe is or wraps a *memory.OutOfMemoryError. Any other
// error ends the search.
//
// The search makes at most [Options.Bound] probes. Then Fits is probed Confirm
// times, and after that Recommended is probed Confirm times. If the two are the same
// size, it is probed Confirm times in all. The package comment says what happens
// when one of these probes fails.
//
// The error is nil, or wraps [ErrNothingFits], the error of ctx or the error of
// probe, or says what is wrong with the options. The Result holds what is known so
// far in every case. Its sizes have been confirmed only if the error is nil.
func Largest(ctx context.Context, o Options, probe func(ctx context.Context, n int) (memory.Bytes, error)) (Result, error) {
	if err := o.check(); err != nil {
		return Result{}, err
	}
	o.Min = max(1, o.Min)
	if o.Confirm == 0 {
		o.Confirm = 2
	}
	s := &searcher{options: o, ctx: ctx, probe: probe, lo: o.Min - 1, hi: o.Max + 1, left: o.Bound()}
	err := s.narrow()
	searched := len(s.probes)
	if err == nil {
		err = s.settle()
	}
	return s.result(searched), err
}
