package report

import (
	"cmp"
	"fmt"
	"slices"

	"headroom/memory"
	"headroom/report/words"
	"headroom/runs"
)

// RankUse is what one of several ranks has used of the host's memory in place of its
// GPU's.
type RankUse struct {
	Rank, World int
	Host        memory.Bytes // the most in any step
	Lost        float64      // seconds that its steps took longer for that, as far as that is known
	Share       float64      // Lost as a part of the time of all its steps; 0 if that is not known
}

// ranksOnHost returns the ranks that have used memory of the host, the one that lost most
// time first. seen holds the steps of all processes.
func ranksOnHost(seen []runs.ProcessStep) []RankUse {
	type process struct{ attempt, pid int }
	found, newest, took := map[int]*RankUse{}, map[process]runs.ProcessStep{}, map[int]float64{}
	for _, s := range seen {
		if s.World < 2 {
			continue
		}
		if found[s.Rank] == nil {
			found[s.Rank] = &RankUse{Rank: s.Rank}
		}
		f, p := found[s.Rank], process{s.Attempt, s.PID}
		before := newest[p]
		f.World, f.Host = s.World, max(f.Host, s.Host)
		f.Lost += max(0, s.Lost-before.Lost)
		took[s.Rank] += s.Seconds * float64(max(0, s.Made-before.Made))
		newest[p] = s
	}
	var ranks []RankUse
	for _, f := range found {
		if f.Host == 0 {
			continue
		}
		if took[f.Rank] > 0 {
			f.Share = min(1, f.Lost/took[f.Rank])
		}
		ranks = append(ranks, *f)
	}
	slices.SortFunc(ranks, func(a, b RankUse) int {
		return cmp.Or(cmp.Compare(b.Lost, a.Lost), cmp.Compare(b.Host, a.Host), cmp.Compare(a.Rank, b.Rank))
	})
	return ranks
}

// String says what the rank has put on the host, and what that took.
func (u RankUse) String() string {
	text := fmt.Sprintf("rank %d of %d put up to %v on the host", u.Rank, u.World, u.Host)
	if u.Lost >= 1 {
		text += ", which took " + words.Seconds(u.Lost)
		if u.Share > 0 {
			text += fmt.Sprintf(" (%s of its time)", words.Percent(u.Share))
		}
	}
	return text
}

// slowest is String for the rank that lost most time.
func (u RankUse) slowest() string {
	return u.String() + ": the other ranks waited for it"
}
