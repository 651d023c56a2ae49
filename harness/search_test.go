package harness

import (
	"testing"

	"headroom/search"
)

func TestSearchText(t *testing.T) {
	for want, probes := range map[string]int{
		"micro-batch 8 fits and is the largest that was asked for (1 probe, 1.5 s)":  1,
		"micro-batch 8 fits and is the largest that was asked for (2 probes, 1.5 s)": 2,
	} {
		if got := searchText(search.Result{Max: 8, Fits: 8, Probes: make([]search.Probe, probes)}, 1.5); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
