package report

import (
	"bytes"
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"headroom/report/words"
)

// Overview is a page about several runs, with one row per run.
type Overview struct {
	Made time.Time // when the page is drawn; zero leaves the time out
	Runs []*Report // newest first
}

// NewOverview returns an overview of the runs in all, which may be in any order. The
// overview refers to the reports and does not copy them.
func NewOverview(made time.Time, all []*Report) *Overview {
	all = slices.Clone(all)
	slices.SortStableFunc(all, func(a, b *Report) int { return b.Outcome.Begin.Compare(a.Outcome.Begin) })
	return &Overview{Made: made, Runs: all}
}

// Title says how many runs there are, and how many of them are in each state.
func (o *Overview) Title() string {
	var states []string
	for _, state := range []State{Running, Finished, Interrupted, Failed, CutOff, Empty} {
		n := 0
		for _, r := range o.Runs {
			if r.Outcome.State == state {
				n++
			}
		}
		if n > 0 {
			states = append(states, fmt.Sprintf("%s %s", words.Count(n), state))
		}
	}
	return strings.TrimSuffix(words.Plural(len(o.Runs), "run")+": "+strings.Join(states, ", "), ": ")
}

// Batch returns the first card, which says whether the effective batch was kept.
func (r *Report) Batch() Card { return r.Cards()[0] }

// Survived says in a few words how many times memory ran out and how that ended.
func (r *Report) Survived() string {
	if r.Failures.Total == 0 {
		return "–"
	}
	return r.failureCard().Answer
}

// Lost returns the time lost to failures and searches, as text, and its share of the
// whole time.
func (r *Report) Lost() string {
	switch f := r.Failures; {
	case f.Lost <= 0 && f.Uncounted > 0:
		return unknownCost
	case f.Lost <= 0:
		return "–"
	}
	return fmt.Sprintf("%s (%s)", words.Seconds(r.Failures.Lost), words.Percent(r.Failures.Share))
}

var (
	//go:embed overview.html.tmpl
	overviewText string

	overviewPage = sync.OnceValue(func() *template.Template {
		return template.Must(template.New("overview").Funcs(template.FuncMap{
			"count": func(n int) string { return words.Count(n) }, "lasting": words.Lasting, "stamp": stamp, "day": day, "style": style, "page": func() string { return Page },
		}).Parse(overviewText))
	})
)

// HTML writes the overview as one page that needs no other file. The name of each run
// links to the run's own page, in the folder of that name beside this page.
func (o *Overview) HTML(w io.Writer) error {
	return written(w, overviewPage(), o, "the overview of the runs")
}

// Markdown writes the overview as a Markdown table.
func (o *Overview) Markdown(w io.Writer) error {
	var b bytes.Buffer
	fmt.Fprintf(&b, "# %s\n\n| Run | State | Out of memory | Time lost | Effective batch | Began | Took |\n|---|---|---|---|---|---|---|\n", plain(o.Title()))
	for _, r := range o.Runs {
		stands := r.Outcome.Title
		if r.Outcome.Reason != "" && r.Outcome.State != Finished {
			stands += ": " + r.Outcome.Reason
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s | %s |\n", plain(r.Name), plain(stands), plain(r.Survived()), plain(r.Lost()), plain(r.Batch().Answer),
			plain(r.Began()), plain(words.Lasting(r.Outcome.Active)))
	}
	if _, err := b.WriteTo(w); err != nil {
		return fmt.Errorf("write the overview of the runs as Markdown: %w", err)
	}
	return nil
}

// Began returns when the run began, as text, or "–" if that is not known.
func (r *Report) Began() string {
	if r.Outcome.Begin.IsZero() {
		return "–"
	}
	return day(r.Outcome.Begin) + " " + stamp(r.Outcome.Begin)
}

// Write writes the page and its Markdown form into dir, the folder that holds the runs.
func (o *Overview) Write(dir string) error { return writePages(dir, o.HTML, o.Markdown) }
