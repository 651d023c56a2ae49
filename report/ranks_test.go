package report

import (
	"slices"
	"strings"
	"testing"

	"headroom/memory"
	"headroom/report/words"
	"headroom/runs"
)

// TestRanksOnHost checks which rank the others are said to have waited for, and for how
// long. Two attempts count together, and a process that trains alone is no rank.
func TestRanksOnHost(t *testing.T) {
	step := func(attempt, pid, rank, made int, host memory.Bytes, lost float64) runs.ProcessStep {
		return runs.ProcessStep{Attempt: attempt, PID: pid, Rank: rank, World: 3, Made: made, Seconds: 2, Host: host, Lost: lost}
	}
	alone := runs.ProcessStep{Attempt: 1, PID: 9, Made: 5, Seconds: 1, Host: 9 * memory.GiB, Lost: 90}
	seen := []runs.ProcessStep{
		alone,
		step(1, 10, 0, 1, 0, 0), step(1, 11, 1, 1, memory.GiB, 0), step(1, 12, 2, 1, 0, 0),
		step(1, 10, 0, 10, 0, 0), step(1, 11, 1, 10, 2*memory.GiB, 6), step(1, 12, 2, 10, 3*memory.GiB, 2),
		step(2, 11, 1, 10, memory.GiB, 4),
	}
	got := ranksOnHost(seen)
	want := []RankUse{{Rank: 1, World: 3, Host: 2 * memory.GiB, Lost: 10, Share: 0.25}, {Rank: 2, World: 3, Host: 3 * memory.GiB, Lost: 2, Share: 0.1}}
	if !slices.Equal(got, want) {
		t.Fatalf("%+v", got)
	}
	if said := got[0].slowest(); said != "rank 1 of 3 put up to 2 GiB on the host, which took 10 s ("+words.Percent(0.25)+" of its time): the other ranks waited for it" {
		t.Error(said)
	}
	if got := ranksOnHost([]runs.ProcessStep{alone}); got != nil {
		t.Errorf("%+v", got)
	}
	r := &Report{Memory: Usage{Peak: memory.GiB, Capacity: 2 * memory.GiB, Headroom: 0.5, Host: memory.GiB, Ranks: want}}
	c := r.memoryCard()
	if !strings.Contains(c.Note, "; rank 1 of 3 put") || strings.Contains(c.Note, "was used in place") || !slices.Equal(c.Lines, []string{want[1].String()}) {
		t.Errorf("%+v", c)
	}
}
