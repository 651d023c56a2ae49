package search_test

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"

	"headroom/memory"
	"headroom/search"
)

// script returns the results of its machine for all probes but one, for which
// it returns an error.
type script struct {
	machine
	at    int // number of the probe that returns err, counted from 1
	err   error
	count int
}

func (s *script) probe(ctx context.Context, n int) (memory.Bytes, error) {
	if s.count++; s.count == s.at {
		return 0, s.err
	}
	return s.machine.probe(ctx, n)
}

func TestOtherErrorEndsTheSearch(t *testing.T) {
	broken := errors.New("illegal memory access")
	for _, c := range []struct {
		at          int
		want        string
		fits, fails int
		recommended int
	}{
		{at: 1, want: ""},
		{at: 2, want: "1", fits: 1, recommended: 1},
		{at: 4, want: "1 8 27", fits: 27, recommended: 27},
		{at: 5, want: "1 8 27 31", fits: 31, recommended: 27},
		{at: 6, want: "1 8 27 31 32!", fits: 31, recommended: 27, fails: 32},
		{at: 9, want: "1 8 27 31 32! | 31 31 28", fits: 31, recommended: 28, fails: 32},
	} {
		s := script{machine: affine(0.08, 31), at: c.at, err: broken}
		r, err := search.Largest(context.Background(), search.Options{Max: 512, Capacity: capacity, Headroom: 0.08}, s.probe)
		if !errors.Is(err, broken) || !strings.HasPrefix(err.Error(), "probe micro-batch ") {
			t.Errorf("probe %d: error %v", c.at, err)
		}
		if s.count != c.at {
			t.Errorf("probe %d failed, %d were made", c.at, s.count)
		}
		if got := trajectory(r); got != c.want || r.Fits != c.fits || r.Recommended != c.recommended || r.Fails != c.fails {
			t.Errorf("probe %d: got %q, fits %d, recommended %d, fails %d; want %+v", c.at, got, r.Fits, r.Recommended, r.Fails, c)
		}
	}
}

func TestCancel(t *testing.T) {
	for _, c := range []struct {
		after int
		cut   bool // the probe notices the cancellation and returns another error
		want  string
		fits  int
	}{
		{after: 0, want: ""},
		{after: 2, want: "1 8", fits: 8},
		{after: 4, want: "1 8 27 31", fits: 31},
		{after: 4, cut: true, want: "1 8 27", fits: 27},
		{after: 6, want: "1 8 27 31 32! | 31", fits: 31},
	} {
		ctx, cancel := context.WithCancel(context.Background())
		count := 0
		if c.after == 0 {
			cancel()
		}
		r, err := search.Largest(ctx, search.Options{Max: 512, Capacity: capacity, Headroom: 0.08},
			func(ctx context.Context, n int) (memory.Bytes, error) {
				if count++; count == c.after {
					cancel()
					if c.cut {
						return 0, errors.New("signal: killed")
					}
				}
				return affine(0.08, 31).probe(ctx, n)
			})
		cancel()
		if !errors.Is(err, context.Canceled) {
			t.Errorf("after %d: error %v", c.after, err)
		}
		if got := trajectory(r); got != c.want || r.Fits != c.fits || count != c.after {
			t.Errorf("after %d: %q, fits %d; want %q, %d", c.after, got, r.Fits, c.want, c.fits)
		}
	}
}

func TestNothingFits(t *testing.T) {
	r, err := search.Largest(context.Background(), search.Options{Min: 4, Max: 512, Capacity: capacity}, affine(0.5, 3).probe)
	var oom *memory.OutOfMemoryError
	if !errors.Is(err, search.ErrNothingFits) || !errors.As(err, &oom) {
		t.Errorf("error %v", err)
	}
	if got := trajectory(r); got != "4!" || r.Fits != 0 || r.Recommended != 0 || r.Fails != 4 || r.Probes[0].Peak != oom.Needed() {
		t.Errorf("got %q, %+v", got, r)
	}
}

func TestNothingFitsAnyMore(t *testing.T) {
	count := 0
	r, err := search.Largest(context.Background(), search.Options{Max: 8, Capacity: capacity},
		func(ctx context.Context, n int) (memory.Bytes, error) {
			if count++; count > 4 {
				return 0, outOfMemory(0.1, 0.1)
			}
			return affine(0.2, 6).probe(ctx, n)
		})
	if !errors.Is(err, search.ErrNothingFits) || r.Fits != 0 || r.Recommended != 0 || r.Fails != 1 {
		t.Errorf("%v: %s, %+v", err, trajectory(r), r)
	}
}

func TestOptionsAreChecked(t *testing.T) {
	for _, c := range []struct {
		options search.Options
		want    []string
	}{
		{search.Options{}, []string{"maximum is 0"}},
		{search.Options{Min: 9, Max: 8}, []string{"maximum is 8; allowed: the minimum, 9, or more"}},
		{search.Options{Max: math.MaxInt}, []string{"at most 2147483647"}},
		{search.Options{Min: -1, Max: 8, Capacity: -1, Confirm: -1, Headroom: 1},
			[]string{"minimum is -1", "capacity is", "confirm is -1", "headroom is 1"}},
		{search.Options{Max: 8, Headroom: math.NaN()}, []string{"headroom is NaN"}},
	} {
		_, err := search.Largest(context.Background(), c.options, func(context.Context, int) (memory.Bytes, error) {
			t.Errorf("%+v was probed", c.options)
			return 0, errors.New("probed")
		})
		for _, want := range c.want {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%+v: error %v, want %q", c.options, err, want)
			}
		}
		if c.options.Bound() != 0 {
			t.Errorf("%+v: bound %d", c.options, c.options.Bound())
		}
	}
}

func TestBound(t *testing.T) {
	for _, c := range []struct {
		options search.Options
		want    int
	}{
		{search.Options{Max: 1}, 2},
		{search.Options{Max: 2}, 3},
		{search.Options{Max: 64}, 8},
		{search.Options{Max: 65}, 9},
		{search.Options{Max: 65536}, 18},
		{search.Options{Min: 100, Max: 199}, 9},
	} {
		if got := c.options.Bound(); got != c.want {
			t.Errorf("%+v: %d, want %d", c.options, got, c.want)
		}
	}
}
