package chart

import (
	"fmt"
	"io"
	"math"
	"slices"
)

// Picture is one picture of a report.
type Picture struct {
	Name  string // used in file names: "memory", "micro-batch", "loss", "throughput", "learning-rate"
	Title string
	Alt   string   // what it shows, in words
	Wide  bool     // takes the page's full width
	Small *Picture // the same picture for a small screen; nil if this one is small enough

	width, height float64
	body          string
}

// SVG writes the picture as a file of its own. It is light or dark, as its viewer
// prefers.
func (p Picture) SVG(w io.Writer) error {
	_, err := fmt.Fprintf(w, `<svg xmlns="http://www.w3.org/2000/svg" width="%g" height="%g" %s>
<style>:root{%s}@media (prefers-color-scheme:dark){:root{%s}}</style>
<rect width="100%%" height="100%%" style="fill:#ffffff;fill:var(--paper)"/>
%s</svg>
`, p.width, p.height, p.attributes(), Variables(false), Variables(true), p.inside())
	return err
}

// Inline returns the picture as an element of an HTML page. The page must define the CSS
// variables of the shades.
func (p Picture) Inline() string {
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

// Draw turns the charts of one page into pictures. It draws the first chart twice: as wide as the
// page and, for a phone, as narrow as the others.
func Draw(charts []Chart) []Picture {
	var all []Picture
	for i, c := range charts {
		c.width, c.height = 460, 300
		p := c.picture(false)
		if i == 0 {
			small := p
			small.Name += "-small"
			c.width, c.height = wideChart, 360
			p = c.picture(true)
			p.Small = &small
		}
		all = append(all, p)
	}
	return all
}

func (c Chart) picture(wide bool) Picture {
	p := Picture{Name: c.Name, Title: c.Title, Alt: c.Alt, Wide: wide, width: c.width, height: c.height}
	empty := true
	for _, l := range c.Lines {
		empty = empty && len(l.Points) == 0
	}
	c.Lines = slices.DeleteFunc(c.Lines, func(l Line) bool { return len(l.Points) == 0 })
	if empty {
		p.Alt = "nothing to show yet"
		head, _ := c.head()
		p.body = head + fmt.Sprintf(`<text x="%g" y="%g" text-anchor="middle" style="font-size:%dpx;%s">%s</text>`,
			c.width/2, c.height/2, textSize+1, paint("fill", "muted"), escaped(p.Alt))
		return p
	}
	c.Y0, c.Y1 = c.limits()
	p.body = c.svg()
	return p
}

// limits returns the ends of the vertical axis: the chart's own if they are given, or
// else values that enclose all points.
func (c Chart) limits() (low, high float64) {
	if c.Y1 > c.Y0 {
		return c.Y0, c.Y1
	}
	low, high = math.Inf(1), math.Inf(-1)
	for _, l := range c.Lines {
		low, high = l.Points.Bounds(low, high)
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
