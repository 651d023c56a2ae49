package main

import (
	"fmt"
	"strings"
	"testing"

	"headroom/harness"
	"headroom/memory"
	"headroom/recovery"
	"headroom/search"
)

func TestByMicro(t *testing.T) {
	var rows []string
	for _, p := range byMicro([]search.Probe{
		{N: 8, Fits: true, Peak: 30}, {N: 4, Fits: true, Peak: 20}, {N: 8, Fits: true, Peak: 32},
		{N: 8, Peak: 31}, {N: 16, Peak: 60}, {N: 16, Peak: 64},
	}) {
		rows = append(rows, fmt.Sprint(p.N, p.Fits, int64(p.Peak)))
	}
	if got := strings.Join(rows, ", "); got != "4 true 20, 8 true 32, 8 false 31, 16 false 64" {
		t.Error(got)
	}
}

// TestFoundSaysWhatRoundingHides checks that a size that fits and one that does not never look
// the same, even if their peaks look the same when rounded. It also checks that a smaller size
// is offered next to the recommended plan, not in its place.
func TestFoundSaysWhatRoundingHides(t *testing.T) {
	f := found{Found: harness.Found{Available: 3 * memory.MiB, Enough: 52, Recommended: recovery.Plan{Effective: 512, World: 1, Micro: 256}, Reason: "why",
		Probes: []search.Probe{{N: 487, Peak: 3*memory.MiB - memory.KiB, Fits: true}, {N: 496, Peak: 3*memory.MiB - 1}, {N: 500, Peak: 3*memory.MiB + memory.KiB}, {N: 600, Peak: 4 * memory.MiB}}}}
	for _, want := range []string{
		"487          3 MiB\n", "496          does not fit: no free block was large enough\n", "500          does not fit: needs 1 KiB more than is available\n", "600          does not fit: needs at least 4 MiB\n",
		"recommended: why\n         or: micro-batch 52 × 10, effective 512, to leave more memory unused: ",
	} {
		if got := f.String(); !strings.Contains(got, want) {
			t.Errorf("%s\nhas not: %s", got, want)
		}
	}
	if f.Enough = 256; strings.Contains(f.String(), "or: ") {
		t.Errorf("%s", f)
	}
	for want, c := range map[string][2]memory.Bytes{"does not fit": {0, 24 * memory.GiB}, "does not fit: needs at least 24 GiB": {24 * memory.GiB, 0}} {
		if got := unfit(c[0], c[1]); got != want {
			t.Errorf("%v: %s", c, got)
		}
	}
}
