package search_test

import (
	"context"
	"errors"
	"testing"

	"headroom/memory"
	"headroom/search"
)

// TestConfirmationSteps checks what is probed after the search. The probes of
// the search itself are always 1 8 27 31 32!. The sizes that fit may change
// after the search.
func TestConfirmationSteps(t *testing.T) {
	noisy := func(n int, peak float64) func(int, int) (memory.Bytes, error) {
		return func(_, size int) (memory.Bytes, error) {
			if size == n {
				return share(peak), nil
			}
			return affine(0.08, 31).probe(context.Background(), size)
		}
	}
	for _, c := range []struct {
		name    string
		confirm int
		then    func(count, n int) (memory.Bytes, error) // answers the probes after the search; count starts at 1
		want    string
		fails   int
	}{
		{"nothing", 0, noisy(0, 0), "31 31 28 28", 32},
		{"three times", 3, noisy(0, 0), "31 31 31 28 28 28", 32},
		{"the largest was on the edge", 0, func(count, n int) (memory.Bytes, error) {
			if n == 31 && count == 2 {
				return 0, outOfMemory(0.98, 0.05)
			}
			return affine(0.08, 31).probe(context.Background(), n)
		}, "31 31! 30 30 28 28", 31},
		{"another process took a third", 0, func(_, n int) (memory.Bytes, error) {
			if m := affine(0.08, 31); m.need(n) <= 0.66 {
				return m.probe(context.Background(), n)
			}
			return 0, outOfMemory(0.65, 0.02)
		}, "31! 20! 18 18", 20},
		{"the recommended size peaked higher than the line said", 0, noisy(28, 0.93), "31 31 28 28 27 27", 32},
		{"the recommended size peaked higher once", 0, func(count, n int) (memory.Bytes, error) {
			if count == 3 {
				return share(0.93), nil
			}
			return affine(0.08, 31).probe(context.Background(), n)
		}, "31 31 28 28 27 27", 32},
		{"the recommended size failed", 0, func(_, n int) (memory.Bytes, error) {
			if n == 28 {
				return 0, outOfMemory(0.9, 0.05)
			}
			return affine(0.08, 31).probe(context.Background(), n)
		}, "31 31 28! 27 27", 28},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := search.Options{Max: 512, Capacity: capacity, Headroom: 0.08, Confirm: c.confirm}
			count := 0
			r, err := search.Largest(context.Background(), o, func(ctx context.Context, n int) (memory.Bytes, error) {
				if count++; count > 5 {
					return c.then(count-5, n)
				}
				return affine(0.08, 31).probe(ctx, n)
			})
			if err != nil {
				t.Fatal(err)
			}
			checkEnded(t, o, r)
			if got, want := trajectory(r), "1 8 27 31 32! | "+c.want; got != want || r.Fails != c.fails {
				t.Errorf("got  %s, fails %d\nwant %s, fails %d", got, r.Fails, want, c.fails)
			}
		})
	}
}

// TestConfirmationKeepsTheMinimum checks that nothing below the smallest size
// is tried or recommended, whatever goes wrong.
func TestConfirmationKeepsTheMinimum(t *testing.T) {
	o := search.Options{Min: 29, Max: 512, Capacity: capacity, Headroom: 0.08}
	r := mustSearch(t, o, affine(0.08, 31))
	if got, want := trajectory(r), "29 30 31 32! | 31 31"; got != want || r.Recommended != 0 {
		t.Errorf("got %s, recommended %d; want %s and none", got, r.Recommended, want)
	}
	count := 0
	r, err := search.Largest(context.Background(), o, func(ctx context.Context, n int) (memory.Bytes, error) {
		if count++; count > r.Searched {
			return 0, outOfMemory(0.5, 0.01)
		}
		return affine(0.08, 31).probe(ctx, n)
	})
	if got, want := trajectory(r), "29 30 31 32! | 31! 29!"; got != want || !errors.Is(err, search.ErrNothingFits) {
		t.Errorf("got %s, %v; want %s", got, err, want)
	}
}

func TestLineIsFittedToWhatRan(t *testing.T) {
	r := mustSearch(t, search.Options{Max: 512, Capacity: capacity}, affine(0.25, 30))
	for _, n := range []int{1, 30, 60} {
		want := affine(0.25, 30).need(n) * float64(capacity)
		if got := r.Line.At(n); got < want*0.9999 || got > want*1.0001 {
			t.Errorf("%d samples: %.0f bytes, want %.0f", n, got, want)
		}
	}
	if r = mustSearch(t, search.Options{Max: 1}, affine(0.25, 30)); r.Line != (search.Line{}) {
		t.Errorf("line through one size: %+v", r.Line)
	}
}
