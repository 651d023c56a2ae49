package report

import (
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"

	"headroom/memory"
	"headroom/report/chart"
	"headroom/report/words"
	"headroom/runs"
)

// filled returns a wrapped run in which memory of the host grew, with an account at each of some
// seconds.
func filled(seconds ...int) *diary {
	d := commandRun()
	for i := range 40 {
		d.Seen = append(d.Seen, runs.ProcessStep{Attempt: 1, PID: 7, Time: at(i), Made: i + 1, Seconds: 1})
	}
	for _, s := range seconds {
		b := memory.Breakdown{Device: memory.OnHost, PID: 7, Step: s, When: memory.AtGrowth, Total: memory.Bytes(s)*memory.GiB + 3*memory.GiB, Shares: []memory.Share{
			{Kind: memory.Weights, Bytes: memory.GiB}, {Kind: memory.Buffers, Bytes: memory.MiB}, {Kind: memory.Kept, Bytes: memory.Bytes(s) * memory.GiB},
			{Kind: memory.Nameless, Bytes: memory.GiB - memory.MiB}, {Kind: memory.Unused, Bytes: memory.GiB}}}
		e := runs.Entry{Kind: runs.KindMemory, Attempt: 1, Time: at(s), Breakdown: &b}
		d.Entries = append(d.Entries, e.Told())
	}
	return d
}

// TestHoldingsArePictured checks the picture of what memory was held for: areas that are stacked up to
// what is in use, the small kinds together, where growth was first seen, and no picture of one account.
func TestHoldingsArePictured(t *testing.T) {
	for _, n := range [][]int{nil, {4}} {
		for _, c := range commandCharts(New(filled(n...).Input)) {
			if c.Name == "held" {
				t.Errorf("a picture of %d accounts", len(n))
			}
		}
	}
	charts := commandCharts(New(filled(4, 10, 30).Input))
	c := charts[len(charts)-1]
	var names []string
	tops := [][]float64{}
	for _, a := range c.Areas {
		names = append(names, a.Name)
		var top []float64
		for _, p := range a.Points[0] {
			top = append(top, p.Y)
		}
		tops = append(tops, top)
	}
	if c.Name != "held" || strings.Join(names, ", ") != "the rest, and unknown, kept results, graphs and inputs, weights" {
		t.Fatalf("%s: %q", c.Name, names)
	}
	for i, want := range [][]float64{{6, 12, 32}, {5, 11, 31}, {1, 1, 1}} {
		for j, w := range want {
			if tops[i][j] != w {
				t.Errorf("%s: %v, want %v", names[i], tops[i], want)
			}
		}
	}
	if x := c.Areas[0].Points[0]; x[0].X != 4 || x[2].X != 30 || c.Lines[0].Points[0][2].Y != 32 {
		t.Errorf("%+v", c)
	}
	// Where memory was first seen to grow stands a line, of which no value is shown.
	if l := c.Lines[1]; l.Points[0][0].X != 4 || l.Points[0][1].X != 4 || l.Points[0][1].Y != c.Y1 {
		t.Errorf("%+v", l)
	}
	drawn := chart.Draw([]chart.Chart{c})[0].Inline()
	if strings.Count(drawn, "first seen to grow") != 1 || !strings.Contains(drawn, "in use, in each account: ") {
		t.Error("the values of a line without values are shown")
	}
}

// TestHoldingsAreListed checks the newest account on the page, since when memory grew, and the holders,
// the largest first.
func TestHoldingsAreListed(t *testing.T) {
	d := filled(4, 10)
	for name, n := range map[string]memory.Bytes{"seen": 1, "history": 2} {
		d.entry(runs.Entry{Kind: runs.KindWarning, Holder: &memory.Holder{Kind: "collected", Name: name, Kept: "train.py:7", Bytes: n * memory.GiB, PerStep: 1}}.Told())
	}
	page := html(t, New(d.Input))
	for _, want := range []string{"memory of process 7 on the host, after step 10, when memory was seen to grow, ", "Memory was first seen to grow after step 4, at ",
		`<td data-label="held for">kept results, graphs and inputs</td><td class="n" data-label="bytes">10 GiB</td><td class="n" data-label="share">77 %</td>`} {
		if !strings.Contains(page, want) {
			t.Errorf("no %q", want)
		}
	}
	list := page[strings.Index(page, `id="held"`):]
	if first, second := strings.Index(list, "`history`"), strings.Index(list, "`seen`"); first < 0 || second < first {
		t.Errorf("%d, %d", first, second)
	}
	if strings.Contains(page, `id="ask"`) || strings.Contains(html(t, New(commandRun().Input)), `id="held"`) {
		t.Error("a button on a page that cannot ask, or an account that there is not")
	}
}

// TestLiveAsks checks that the live page of a run in progress can ask it for an account, and only
// with the page's token.
func TestLiveAsks(t *testing.T) {
	stamp, asked := "", 0
	d := filled()
	d.Running = true
	live := served(d, &stamp)
	if status, page, _ := ask(live, "GET", "http://localhost:8000/?token=secret", nil); status != http.StatusOK || strings.Contains(page, `id="ask"`) {
		t.Errorf("nobody can be asked: %d", status)
	}
	if status, _, _ := ask(live, "POST", "http://localhost:8000/account?token=secret", nil); status != http.StatusMethodNotAllowed {
		t.Errorf("nobody can be asked: %d", status)
	}
	live = served(d, &stamp)
	live.Ask = func() error { asked++; return nil }
	if status, page, _ := ask(live, "GET", "http://localhost:8000/?token=secret", nil); status != http.StatusOK || !strings.Contains(page, `id="ask"`) {
		t.Errorf("%d, %t", status, strings.Contains(page, `id="ask"`))
	}
	for _, url := range []string{"http://localhost:8000/account", "http://localhost:8000/account?token=no", "http://evil.example/account?token=secret", "http://localhost:8000/?token=secret"} {
		if status, _, _ := ask(live, "POST", url, nil); status != http.StatusMethodNotAllowed {
			t.Errorf("%s: %d", url, status)
		}
	}
	if status, _, _ := ask(live, "POST", "http://localhost:8000/account?token=secret", nil); status != http.StatusNoContent || asked != 1 {
		t.Errorf("%d, asked %d times", status, asked)
	}
	live.Ask = func() error { return errors.New("nobody is there") }
	if status, body, _ := ask(live, "POST", "http://localhost:8000/account?token=secret", nil); status != http.StatusServiceUnavailable || !strings.Contains(body, "nobody is there") {
		t.Errorf("%d, %q", status, body)
	}
	if d.Running = false; strings.Contains(html(t, New(d.Input)), `id="held"`) {
		t.Error("a run that has ended cannot be asked")
	}
}

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
