package report

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"headroom/memory"
	"headroom/report/chart"
	"headroom/report/words"
	"headroom/runs"
)

// Holdings is what the memory of a wrapped command was held for.
type Holdings struct {
	Newest  []runs.Account  // of each memory, on the newest occasion
	Grew    *runs.Account   // where memory was first seen to grow; nil if it was not
	Holders []memory.Holder // what was found to hold memory that grows, the largest first
	Asks    bool            // the run is in progress, and can be asked for an account

	series []runs.Account // the accounts of the memory that has the most
}

// holdersMost is the largest number of holders that a page lists.
const holdersMost = 8

// held returns what the journal says of what memory was held for; nil if it says nothing.
func held(in Input) *Holdings {
	h := Holdings{Newest: runs.NewestAccounts(in.Entries, time.Time{}), Asks: in.Running && len(in.Seen) > 0}
	type place struct {
		attempt, pid int
		device       string
	}
	series := map[place][]runs.Account{}
	for _, a := range runs.Accounts(in.Entries) {
		p := place{a.Attempt, a.PID, a.Device}
		if series[p] = append(series[p], a); len(series[p]) >= len(h.series) {
			h.series = series[p]
		}
		if h.Grew == nil && a.When == memory.AtGrowth {
			h.Grew = &a
		}
	}
	for _, e := range in.Entries {
		if e.Holder != nil && !slices.ContainsFunc(h.Holders, func(o memory.Holder) bool { return o.Name == e.Holder.Name && o.Kept == e.Holder.Kept }) {
			h.Holders = append(h.Holders, *e.Holder)
		}
	}
	slices.SortStableFunc(h.Holders, func(a, b memory.Holder) int { return int(min(1, max(-1, b.Bytes-a.Bytes))) })
	h.Holders = h.Holders[:min(len(h.Holders), holdersMost)]
	if len(h.Newest) == 0 && !h.Asks {
		return nil
	}
	return &h
}

// Percent returns the share of an account's total, as text.
func (h *Holdings) Percent(s memory.Share, a runs.Account) string {
	return words.Percent(float64(s.Bytes) / float64(max(1, a.Total)))
}

// heldShades are the colours of kinds of memory in the picture. Kinds without one are drawn together.
var heldShades = []struct {
	kind  memory.Kind
	shade string
}{
	{memory.Libraries, "muted"}, {memory.Others, "violetfill"}, {memory.Weights, "blue"}, {memory.Gradients, "teal"}, {memory.Optimizer, "violet"},
	{memory.Activations, "orange"}, {memory.Kept, "red"}, {memory.Pieces, "magenta"}, {memory.Cache, "bluefill"},
}

// heldLeast is the share of the largest amount in use below which a kind is drawn with the rest.
const heldLeast = 0.01

// heldChart returns the chart of what memory was held for, and whether there is one: it needs two
// accounts. when returns the place of a time on the horizontal axis.
func heldChart(r *Report, when func(time.Time) float64) (chart.Chart, bool) {
	if r.Holdings == nil || len(r.Holdings.series) < 2 {
		return chart.Chart{}, false
	}
	all := r.Holdings.series
	most := memory.Bytes(0)
	for _, a := range all {
		most = max(most, a.Used())
	}
	in, unit := amountsOf(most)
	amount := func(b memory.Bytes) float64 {
		if b == 0 {
			return 0 // in would leave a gap
		}
		return in(b)
	}
	c := chart.Chart{
		Name: "held", Title: "What memory was held for", Unit: unit, Y1: 1.12 * in(most),
		Alt: fmt.Sprintf("the memory of %s in %d accounts, with straight lines between them", all[0].Device, len(all)),
	}
	below := make([]memory.Bytes, len(all)) // the top of the areas so far
	area := func(name, shade string, of func(runs.Account) memory.Bytes) {
		points := make([]chart.Point, len(all))
		for i, a := range all {
			below[i] += of(a)
			points[i] = chart.Point{X: when(a.Time), Y: amount(below[i])}
		}
		c.Areas = append(c.Areas, chart.Area{Name: name, Shade: shade, Points: chart.Series{points}})
	}
	drawn := map[memory.Kind]bool{memory.Unused: true}
	for _, s := range heldShades {
		if slices.ContainsFunc(all, func(a runs.Account) bool { return float64(a.Of(s.kind)) >= heldLeast*float64(most) }) {
			area(s.kind.String(), s.shade, func(a runs.Account) memory.Bytes { return a.Of(s.kind) })
			drawn[s.kind] = true
		}
	}
	rest := func(a runs.Account) memory.Bytes {
		n := a.Used()
		for kind := range drawn {
			if kind != memory.Unused {
				n -= a.Of(kind)
			}
		}
		return n
	}
	area("the rest, and unknown", "grid", rest)
	slices.Reverse(c.Areas) // each area goes down to 0, so that the lower ones are drawn last
	top := c.Areas[0].Points[0]
	c.Lines = []chart.Line{{Name: "in use, in each account", Shade: "ink", Points: chart.Series{top}, Width: 1.5}}
	if grew := r.Holdings.Grew; grew != nil {
		x := when(grew.Time)
		c.Lines = append(c.Lines, chart.Line{
			Name: "first seen to grow", Shade: "red", Points: chart.Series{{{X: x}, {X: x, Y: c.Y1}}}, Dashed: true, Width: 1.5, Moment: true,
		})
	}
	return c, true
}

// GrewText says when memory was first seen to grow; "" if it was not.
func (h *Holdings) GrewText() string {
	if h.Grew == nil {
		return ""
	}
	return fmt.Sprintf("Memory was first seen to grow after step %s, at %s %s.", words.Count(h.Grew.Step), day(h.Grew.Time), stamp(h.Grew.Time))
}

// HolderText says what one holder holds, and what to write instead.
func (h *Holdings) HolderText(one memory.Holder) string { return clipped(one.String(), textLimit) }

// FragmentsText says how free memory of the allocator lies; "" if that is not known.
func (h *Holdings) FragmentsText(a runs.Account) string {
	if f := a.Fragments; f != nil && f.Number > 0 {
		return fmt.Sprintf("%v is free in the allocator %v.", f.Pieces, *f)
	}
	return ""
}

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
