package report

import (
	"bytes"
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"strings"
	"sync"
	"time"

	"headroom/recovery"
	"headroom/report/chart"
	"headroom/report/words"
)

// Limits on how much of a long run a page shows. They keep a page below 150 KiB, whatever
// happened in the run.
const (
	textLimit     = 400      // bytes of one text
	longTextLimit = 1_000    // bytes of a text that a page shows only once
	ledgerFirst   = 3        // rows from the start of the ledger
	ledgerRoom    = 15 << 10 // bytes of the newest rows of the ledger
	attemptsFirst = 3        // attempts from the first one on
	attemptsLast  = 9        // newest attempts
	endLimit      = 150      // bytes of the text that says how an attempt ended
	sizesLimit    = 20       // ways to cut a step
)

var (
	//go:embed page.html.tmpl
	pageText string
	//go:embed page.css
	pageStyle string
	//go:embed live.js
	liveScript string

	page = sync.OnceValue(func() *template.Template {
		return template.Must(template.New("page").Funcs(template.FuncMap{
			"count": func(n int) string { return words.Count(n) }, "number": words.Number, "lasting": words.Seconds, "stamp": stamp, "day": day,
			"style":   style,
			"script":  func() template.JS { return template.JS(liveScript) },
			"picture": func(p chart.Picture) template.HTML { return template.HTML(p.Inline()) }, // its texts were escaped when it was drawn
		}).Parse(pageText))
	})
)

// HTML writes the report as one page that needs no script, no other file and no network.
func (r *Report) HTML(w io.Writer) error {
	return r.html(w, "", false)
}

// html writes the page as [Report.HTML] does. Unless nonce is "", it also adds the script
// of a live page; asks says whether that can ask the run for an account of its memory.
func (r *Report) html(w io.Writer, nonce string, asks bool) error {
	return written(w, page(), struct {
		*Report
		Nonce string
		Asks  bool
	}{r, nonce, asks}, "the report of "+r.Name)
}

// written executes the template page on the given data and writes the result to w. The
// argument what names the page in error messages.
func written(w io.Writer, page *template.Template, of any, what string) error {
	var text bytes.Buffer
	err := page.Execute(&text, of)
	if err == nil {
		_, err = w.Write(bytes.Map(printable, text.Bytes()))
	}
	if err != nil {
		return fmt.Errorf("write %s as HTML: %w", what, err)
	}
	return nil
}

// printable replaces a control character that HTML does not allow. A journal may hold the
// terminal sequences that a child process printed.
func printable(c rune) rune {
	if c < ' ' && c != '\n' && c != '\t' && c != '\r' || c == 0x7f {
		return '\ufffd'
	}
	return c
}

// style returns the page's style sheet, with the colours of the light and the dark
// scheme. A printed page is white, whichever scheme the screen uses.
func style() template.CSS {
	return template.CSS(fmt.Sprintf(":root{color-scheme:light dark;%s}\n@media screen and (prefers-color-scheme:dark){:root{%s}}\n%s",
		chart.Variables(false), chart.Variables(true), pageStyle))
}

// Limits on how many attempts and rows of the ledger a page shows without folding them.
// When rows are folded, the newest newestRows of them stay visible.
const (
	attemptLimit  = 8
	unfoldedLimit = 12
	newestRows    = 8
)

// Folded reports whether the page folds its list of attempts.
func (r *Report) Folded() bool { return len(r.Attempts) > attemptLimit }

// Shown is a row, an attempt or a size as a page shows it.
type Shown[T any] struct {
	One     T
	Skipped int // how many were left out before it
}

// SomeAttempts returns the attempts that a page has room for.
func (r *Report) SomeAttempts() []Shown[Attempt] {
	return shown(r.Attempts, attemptsFirst, len(r.Attempts)-attemptsLast)
}

// SomeSizes returns the sizes that a page has room for.
func (r *Report) SomeSizes() []Shown[Size] {
	return shown(r.Sizes, sizesLimit/2, len(r.Sizes)-sizesLimit/2)
}

// shown returns the items of all with an index below first, followed by those from index
// newest on.
func shown[T any](all []T, first, newest int) (some []Shown[T]) {
	for i, one := range all {
		skipped := 0
		if i == newest {
			skipped = max(0, newest-first)
		}
		if i < first || i >= newest {
			some = append(some, Shown[T]{one, skipped})
		}
	}
	return some
}

// Folds holds the rows that a page shows. Older rows are folded; the newest are visible.
type Folds struct {
	Older, Newest []Shown[Row]
	Earlier       int // how many rows come before the newest ones, including rows that are left out
}

// Folds returns the rows that a page shows. If the ledger is short, none is folded.
func (r *Report) Folds() Folds {
	rows := r.SomeRows()
	if len(rows) <= unfoldedLimit {
		return Folds{Newest: rows}
	}
	n := len(rows) - newestRows
	return Folds{rows[:n], rows[n:], rows[n].One.Number - 1}
}

// Last returns the newest attempt, or nil if there is none.
func (r *Report) Last() *Attempt {
	if len(r.Attempts) == 0 {
		return nil
	}
	return &r.Attempts[len(r.Attempts)-1]
}

// Wide returns the pictures that take up the page's full width.
func (r *Report) Wide() []chart.Picture { return r.width(true) }

// Narrow returns the pictures that are placed side by side.
func (r *Report) Narrow() []chart.Picture { return r.width(false) }

func (r *Report) width(wide bool) []chart.Picture {
	var some []chart.Picture
	for _, p := range r.draw() {
		if p.Wide == wide {
			some = append(some, p)
		}
	}
	return some
}

// SomeRows returns the rows of the ledger that a page has room for: the first few and the
// newest.
func (r *Report) SomeRows() []Shown[Row] {
	first, newest := min(ledgerFirst, len(r.Ledger)), len(r.Ledger)
	for room := ledgerRoom; newest > first; newest-- {
		if room -= r.Ledger[newest-1].size(); room < 0 {
			break
		}
	}
	rows := shown(r.Ledger, first, newest)
	if n := len(rows); n > 0 && r.Outcome.State == Failed && rows[n-1].One.last == recovery.Stop {
		rows[n-1].One.Reason, rows[n-1].One.Hint = "", "" // the top of the page shows both
	}
	return rows
}

// size returns the approximate number of bytes that the row takes up on a page.
func (r Row) size() int {
	n := 600 // for the row's HTML elements
	for _, text := range r.texts() {
		for _, c := range *text {
			n += weight(c)
		}
	}
	return n
}

// Shade returns the colour of the row's badge, which is the same in the pictures.
func (r Row) Shade() string {
	switch {
	case r.Failed:
		return chart.CauseShade(r.Cause)
	case r.Tone == Good:
		return "teal"
	case r.Tone == Bad:
		return "red"
	case r.Tone == Warn:
		return "orange"
	}
	return "muted"
}

// Period says when the run took place, how long it took and in how many attempts.
func (r *Report) Period() string {
	o := r.Outcome
	if o.Begin.IsZero() {
		return ""
	}
	end := stamp(o.End)
	if day(o.End) != day(o.Begin) {
		end = day(o.End) + " " + end
	}
	return fmt.Sprintf("%s %s to %s %s · %s in %s", day(o.Begin), stamp(o.Begin), end, o.End.Format("MST"),
		words.Lasting(o.Active), words.Plural(max(1, len(r.Attempts)), "attempt"))
}

func stamp(t time.Time) string { return t.Format("15:04:05") }

func day(t time.Time) string { return t.Format("2 Jan 2006") }

// clipped returns s if it takes at most limit bytes in HTML. Otherwise it returns as much
// of the start of s as fits, with … for the rest.
func clipped(s string, limit int) string {
	for i, c := range s {
		if limit -= weight(c); limit < 0 {
			return strings.TrimRight(s[:i], " ") + " …"
		}
	}
	return s
}

// weight returns how many bytes c takes in HTML.
func weight(c rune) int {
	if strings.ContainsRune(`<>&"'`, c) {
		return len("&#34;")
	}
	return len(string(c))
}
