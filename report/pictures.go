package report

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"headroom/memory"
	"headroom/runs"
)

// Picture is one picture of a report.
type Picture struct {
	Name  string // used in file names: "memory", "micro-batch", "loss", "throughput", "learning-rate"
	Title string
	Alt   string // what it shows, in words
	Wide  bool   // takes the page's full width

	width, height float64
	body          string
	small         *Picture // the same picture for a small screen; nil if this one is small enough
}

// Pictures returns the pictures of the report, in their order on the page. For a run that
// headroom trained itself, the first four are always there, and say so if they have
// nothing to show. For a wrapped command, pictures show what was seen of it, and there
// may be none.
func (r *Report) Pictures() []Picture { return slices.Clone(r.draw()) }

// SVG writes the picture as a file of its own. It is light or dark, as its viewer
// prefers.
func (p Picture) SVG(w io.Writer) error {
	_, err := fmt.Fprintf(w, `<svg xmlns="http://www.w3.org/2000/svg" width="%g" height="%g" %s>
<style>:root{%s}@media (prefers-color-scheme:dark){:root{%s}}</style>
<rect width="100%%" height="100%%" style="fill:#ffffff;fill:var(--paper)"/>
%s</svg>
`, p.width, p.height, p.attributes(), variables(false), variables(true), p.inside())
	return err
}

// inline returns the picture as an element of an HTML page. The page must define the CSS
// variables of the shades.
func (p Picture) inline() string {
	return fmt.Sprintf("<svg %s>%s</svg>", p.attributes(), onlyVariables().Replace(p.inside()))
}

func (p Picture) attributes() string {
	return fmt.Sprintf(`viewBox="0 0 %g %g" role="img" aria-labelledby="%s-title %s-desc" font-family="Helvetica Neue, Arial, Liberation Sans, sans-serif"`,
		p.width, p.height, p.Name, p.Name)
}

func (p Picture) inside() string {
	return fmt.Sprintf(`<title id="%s-title">%s</title><desc id="%s-desc">%s</desc>%s`,
		p.Name, escaped(p.Title), p.Name, escaped(p.Alt), p.body)
}

func pictures(r *Report) []Picture {
	charts := []chart{memoryChart(r), microChart(r), throughputChart(r), lossChart(r)}
	if c, varies := rateChart(r); varies {
		charts = append(charts, c)
	}
	return drawn(r, charts)
}

// stepsAcross is the name of a horizontal axis that counts optimizer steps.
const stepsAcross = "optimizer step"

// drawn turns the charts into pictures. It draws the first chart twice: as wide as the
// page and, for a phone, as narrow as the others.
func drawn(r *Report, charts []chart) []Picture {
	var all []Picture
	for i, c := range charts {
		c.width, c.height = 460, 300
		p := c.picture(r, false)
		if i == 0 {
			small := p
			small.Name += "-small"
			c.width, c.height = wideChart, 360
			p = c.picture(r, true)
			p.small = &small
		}
		all = append(all, p)
	}
	return all
}

// Small returns the picture for a small screen, or nil if p is small enough.
func (p Picture) Small() *Picture { return p.small }

func (c chart) picture(r *Report, wide bool) Picture {
	p := Picture{Name: c.name, Title: c.title, Alt: c.alt, Wide: wide, width: c.width, height: c.height}
	if c.across == "" {
		c.across = stepsAcross
		c.x0, c.x1 = stepRange(r)
	}
	empty := true
	for _, l := range c.lines {
		empty = empty && len(l.points) == 0
	}
	c.lines = slices.DeleteFunc(c.lines, func(l line) bool { return len(l.points) == 0 })
	if empty {
		p.Alt = "nothing to show yet"
		head, _ := c.head()
		p.body = head + fmt.Sprintf(`<text x="%g" y="%g" text-anchor="middle" style="font-size:%dpx;%s">%s</text>`,
			c.width/2, c.height/2, textSize+1, paint("fill", "muted"), escaped(p.Alt))
		return p
	}
	c.y0, c.y1 = c.limits()
	p.body = c.svg()
	return p
}

// limits returns the ends of the vertical axis: the chart's own if they are given, or
// else values that enclose all points.
func (c chart) limits() (low, high float64) {
	if c.y1 > c.y0 {
		return c.y0, c.y1
	}
	low, high = math.Inf(1), math.Inf(-1)
	for _, l := range c.lines {
		low, high = l.points.bounds(low, high)
	}
	if !(low <= high) {
		return 0, 1
	}
	if low > 0 && low < high/2 {
		low = 0
	}
	margin := 0.06 * (high - low)
	if margin == 0 {
		margin = max(math.Abs(high)/10, 1e-9)
	}
	if low != 0 {
		low -= margin
	}
	return low, high + margin
}

// stepRange returns the ends of the horizontal axis, which covers all steps that were
// tried.
func stepRange(r *Report) (from, to float64) {
	from, to = 1, 1
	if n := len(r.steps); n > 0 {
		from, to = float64(r.steps[0].Step), float64(r.steps[n-1].Step)
	}
	for _, row := range r.Ledger {
		if row.Failed {
			from, to = min(from, float64(row.Step)), max(to, float64(row.Step))
		}
	}
	if from == to {
		return from - 0.5, to + 0.5
	}
	return from, to
}

// along returns the series of one value over all steps, thinned out.
func along(r *Report, value func(*runs.StepReport) float64) series {
	return sample(len(r.steps), func(i int) (x, y float64) {
		return float64(r.steps[i].Step), value(&r.steps[i])
	})
}

// marksOf returns the marks of a run's failures. at returns the place of a mark on the
// vertical axis.
func marksOf(r *Report, at func(Row) float64) []mark {
	var all []mark
	for _, row := range r.Ledger {
		if !row.Failed {
			continue
		}
		all = append(all, markOf(row, fmt.Sprintf("step %s: ", count(row.Step)), float64(row.Step), at(row)))
	}
	slices.SortStableFunc(all, func(a, b mark) int { return cmp.Compare(a.step, b.step) })
	return all
}

// markOf returns the mark of one failure, at the place x, y on the chart. where describes
// that place in words.
func markOf(row Row, where string, x, y float64) mark {
	cause := cmp.Or(row.Cause, memory.Unknown)
	text := strings.TrimSuffix(fmt.Sprintf("%d. %s%s: %s", row.Number, where, cause, row.Why), ": ")
	if row.Remedy != "" {
		text += " → " + row.Remedy
	}
	return mark{number: row.Number, step: x, value: y, cause: cause, text: clipped(text, markTextLimit)}
}

func atTop(Row) float64 { return math.NaN() }
