package search_test

import (
	"context"
	"testing"

	"headroom/search"
)

func TestResultSaysWhatIsKnown(t *testing.T) {
	for _, c := range []struct {
		result search.Result
		want   string
	}{
		{search.Result{Max: 511, Fits: 488, Fails: 489}, "micro-batch 488 is the largest that fits"},
		{search.Result{Max: 511, Fits: 511}, "micro-batch 511 fits and is the largest that was asked for"},
		{search.Result{Max: 511, Fits: 510, Fails: 511}, "micro-batch 510 is the largest that fits"},
		{search.Result{Max: 511, Fits: 272, Fails: 490}, "the largest micro-batch that fits lies between 272 and 489: 272 fits, 490 does not"},
		{search.Result{Max: 511, Fits: 486, Fails: 488}, "the largest micro-batch that fits lies between 486 and 487: 486 fits, 488 does not"},
		{search.Result{Max: 511, Fails: 4}, "not even micro-batch 4 fits"},
		{search.Result{Max: 511, Fits: 8}, "micro-batch 8 fits and is the largest that was tried"},
		{search.Result{Max: 511}, "no micro-batch was tried"},
	} {
		if got := c.result.String(); got != c.want {
			t.Errorf("fits %d, fails %d, of %d: %q, want %q", c.result.Fits, c.result.Fails, c.result.Max, got, c.want)
		}
	}
}

func TestResultOfASearchSaysWhatIsKnown(t *testing.T) {
	for _, c := range []struct {
		options search.Options
		machine machine
		want    string
	}{
		{search.Options{Max: 512, Capacity: capacity}, affine(0.08, 31), "micro-batch 31 is the largest that fits"},
		{search.Options{Max: 16, Capacity: capacity}, affine(0.08, 31), "micro-batch 16 fits and is the largest that was asked for"},
		{search.Options{Max: 511, Capacity: capacity}, perceptron(488), "the largest micro-batch that fits lies between 488 and 496: 488 fits, 497 does not"},
		{search.Options{Min: 4, Max: 512, Capacity: capacity}, affine(0.5, 3), "not even micro-batch 4 fits"},
	} {
		// If nothing fits, the error says no more than the result does.
		r, _ := search.Largest(context.Background(), c.options, c.machine.probe)
		if got := r.String(); got != c.want {
			t.Errorf("%s: %q, want %q", trajectory(r), got, c.want)
		}
	}
}
