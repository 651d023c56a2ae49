package report

import (
	"bytes"
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"sync"
	"time"

	"headroom/recovery"
)

// ledgerLimit is how many rows of the ledger a page shows, half of them from its
// start and half from its end.
const ledgerLimit = 200

var (
	//go:embed page.html.tmpl
	pageText string
	//go:embed page.css
	pageStyle string
	//go:embed live.js
	liveScript string

	page = sync.OnceValue(func() *template.Template {
		return template.Must(template.New("page").Funcs(template.FuncMap{
			"count": func(n int) string { return count(n) }, "number": number, "lasting": secondsLasting, "stamp": stamp, "day": day,
			"style": style,
			"known": func(n int) string {
				if n == 0 {
					return "–"
				}
				return count(n)
			},
			"script":  func() template.JS { return template.JS(liveScript) },
			"picture": func(p interface{ inline() string }) template.HTML { return template.HTML(p.inline()) }, // escaped where it was drawn
		}).Parse(pageText))
	})
)

// HTML writes the report as one page that needs nothing else: no script, no
// file beside it, no network.
func (r *Report) HTML(w io.Writer) error {
	return r.html(w, "")
}

// html does what HTML does, and adds the script of a live page if a nonce is given.
func (r *Report) html(w io.Writer, nonce string) error {
	return written(w, page(), struct {
		*Report
		Nonce string
	}{r, nonce}, "the report of "+r.Name)
}

// written writes a page; the argument what names the page in an error.
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

// printable replaces the control characters that HTML does not allow. A
// journal may hold a child's terminal sequences.
func printable(c rune) rune {
	if c < ' ' && c != '\n' && c != '\t' && c != '\r' || c == 0x7f {
		return '\ufffd'
	}
	return c
}

// style is the page's style sheet, with the colours of the light and of the dark
// scheme. Printed pages are white whichever scheme the screen uses.
func style() template.CSS {
	return template.CSS(fmt.Sprintf(":root{color-scheme:light dark;%s}\n@media screen and (prefers-color-scheme:dark){:root{%s}}\n%s",
		variables(false), variables(true), pageStyle))
}

// attemptLimit is how many attempts a page lists without folding them.
const attemptLimit = 8

// Folded reports whether a page folds the attempts.
func (r *Report) Folded() bool { return len(r.Attempts) > attemptLimit }

// Last is the newest attempt, nil if there is none.
func (r *Report) Last() *Attempt {
	if len(r.Attempts) == 0 {
		return nil
	}
	return &r.Attempts[len(r.Attempts)-1]
}

// Wide are the pictures that take the full width, Narrow the others.
func (r *Report) Wide() []Picture { return r.width(true) }

// Narrow are the pictures that are placed side by side.
func (r *Report) Narrow() []Picture { return r.width(false) }

func (r *Report) width(wide bool) []Picture {
	var some []Picture
	for _, p := range r.draw() {
		if p.Wide == wide {
			some = append(some, p)
		}
	}
	return some
}

// Shown are the rows of the ledger that a page has room for. Where rows are
// left out, the first one after them has Skipped set.
func (r *Report) Shown() []ShownRow {
	skip := max(0, len(r.Ledger)-ledgerLimit)
	var shown []ShownRow
	for i, row := range r.Ledger {
		if i < ledgerLimit/2 || i >= ledgerLimit/2+skip {
			shown = append(shown, ShownRow{Row: row})
		}
	}
	if skip > 0 {
		shown[ledgerLimit/2].Skipped = skip
	}
	if n := len(shown); n > 0 && r.Outcome.State == Failed && shown[n-1].last == recovery.Stop {
		shown[n-1].Reason, shown[n-1].Hint = "", "" // the top of the page has both
	}
	return shown
}

// ShownRow is a row of the ledger on a page.
type ShownRow struct {
	Row
	Skipped int // rows left out before it
}

// Shade is the colour of the row's badge, as in the pictures.
func (r ShownRow) Shade() string {
	switch {
	case r.Failed:
		return causeShade(r.Cause)
	case r.Tone == Good:
		return "teal"
	case r.Tone == Bad:
		return "red"
	case r.Tone == Warn:
		return "orange"
	}
	return "muted"
}

// Period is when the run took place, how long it took and in how many attempts.
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
		lasting(o.Active), plural(max(1, len(r.Attempts)), "attempt"))
}

func stamp(t time.Time) string { return t.Format("15:04:05") }

func day(t time.Time) string { return t.Format("2 Jan 2006") }
