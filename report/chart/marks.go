package chart

import (
	"encoding/xml"
	"fmt"
	"math"
	"strings"

	"headroom/memory"
	"headroom/report/words"
)

// markTexts is the largest number of failures that the text of a shared mark lists.
const markTexts = 2

// markLimit is how many marks a chart may have. If there would be more, each mark covers
// all failures of a stretch of the chart.
const markLimit = 24

// Mark is a failure on a chart.
type Mark struct {
	Number int     // shown in the mark's badge
	X      float64 // place on the horizontal axis
	Y      float64 // place on the vertical axis; NaN means the top
	Cause  memory.Cause
	Text   string // what is said of the failure
}

// drawMarks draws a line and a numbered badge for every failure. Failures whose badges
// would overlap share one badge.
func (c Chart) drawMarks(f frame) string {
	groups := c.groups(f, 2)
	if len(groups) > markLimit {
		groups = c.groups(f, (f.right-f.left)/markLimit)
	}
	var b strings.Builder
	for _, group := range groups {
		c.drawMark(&b, f, group)
	}
	return b.String()
}

// groups puts the marks into groups whose badges are at least the given distance apart.
func (c Chart) groups(f frame, apart float64) (all [][]Mark) {
	for from := 0; from < len(c.Marks); {
		to := from + 1
		for to < len(c.Marks) && f.x(c.Marks[to].X)-half(c.Marks[to:to+1]) < f.middle(c.Marks[from:to])+half(c.Marks[from:to])+apart {
			to++
		}
		all = append(all, c.Marks[from:to])
		from = to
	}
	return all
}

// stripWidth is the approximate width of the strips that show values.
const stripWidth = 32

// drawValues lays invisible strips over the chart. When the reader points at a strip,
// the browser shows the values of the lines at the middle of the strip.
func (c Chart) drawValues(f frame) string {
	var b strings.Builder
	n := int((f.right - f.left) / stripWidth)
	for i := range n {
		wide := (c.X1 - c.X0) / float64(n)
		middle := c.X0 + (float64(i)+0.5)*wide
		text := words.Number(middle) + " " + c.Across
		if c.Across == Steps {
			middle = math.Round(middle)
			text = "step " + words.Count(int64(middle))
		}
		known := false
		for _, l := range c.Lines {
			if y, ok := l.Points.near(middle, wide/2); ok && !l.Moment {
				known = true
				text += "\n" + strings.TrimRight(l.Name+": "+words.Number(y)+" "+c.Unit, " ")
			}
		}
		if known {
			left, end := f.left+(f.right-f.left)*float64(i)/float64(n), f.left+(f.right-f.left)*float64(i+1)/float64(n)
			fmt.Fprintf(&b, `<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f"><title>%s</title></rect>`, left, f.top, end-left, f.bottom-f.top, escaped(text))
		}
	}
	return `<g class="values" style="fill:none;pointer-events:all">` + b.String() + "</g>\n"
}

// badge returns the text in the badge of a group of marks.
func badge(group []Mark) string {
	if len(group) == 1 {
		return fmt.Sprint(group[0].Number)
	}
	return fmt.Sprintf("%d–%d", group[0].Number, group[len(group)-1].Number)
}

// half returns half the width of the badge of a group of marks.
func half(group []Mark) float64 { return textWidth(badge(group), 11)/2 + 5 }

func (f frame) middle(group []Mark) float64 {
	return (f.x(group[0].X) + f.x(group[len(group)-1].X)) / 2
}

func (c Chart) drawMark(b *strings.Builder, f frame, group []Mark) {
	x := f.middle(group)
	y, texts := f.bottom, []string{}
	for _, m := range group {
		at := f.top - 4
		if m.Y == m.Y {
			at = max(at, f.y(m.Y))
		}
		y = min(y, at)
		if len(texts) < markTexts {
			texts = append(texts, m.Text)
		}
	}
	if more := len(group) - len(texts); more > 0 {
		texts = append(texts, fmt.Sprintf("and %d more", more))
	}
	half := half(group)
	x0 := min(max(x, f.left+half), c.width-half-1) // clear of the axis labels
	shade := CauseShade(group[len(group)-1].Cause)
	fmt.Fprintf(b, `<g class="mark"><title>%s</title>`, escaped(strings.Join(texts, "\n")))
	fmt.Fprintf(b, `<path d="M%.1f,%.1fV%.1f" style="%s;stroke-width:1;stroke-dasharray:2,3;fill:none"/>`, x, y, f.bottom, paint("stroke", shade))
	fmt.Fprintf(b, `<rect x="%.1f" y="%.1f" width="%.1f" height="18" rx="9" style="%s"/>`, x0-half, y-9, 2*half, paint("fill", shade))
	fmt.Fprintf(b, `<text x="%.1f" y="%.1f" text-anchor="middle" style="font-size:11px;font-weight:bold;%s">%s</text></g>`+"\n", x0, y+4, paint("fill", "paper"), badge(group))
}

// head returns the SVG of the title, the unit and the legend, and the height that they
// take up.
func (c Chart) head() (svg string, height float64) {
	var b strings.Builder
	fmt.Fprintf(&b, `<text x="4" y="19" style="font-size:%dpx;font-weight:bold;%s">%s</text>`, titleSize, paint("fill", "ink"), escaped(c.Title))
	if c.Unit != "" {
		fmt.Fprintf(&b, `<text x="%.1f" y="19" style="font-size:%dpx;%s">%s</text>`+"\n",
			12+1.08*textWidth(c.Title, titleSize), textSize, paint("fill", "muted"), escaped(c.Unit))
	}
	x, y := 4.0, 42.0
	for _, key := range c.legend() {
		width := 24 + textWidth(key.name, textSize-1)
		if x > 4 && x+width > c.width {
			x, y = 4, y+legendLine
		}
		fmt.Fprintf(&b, `<g transform="translate(%.1f,%.1f)">%s<text x="24" style="font-size:%dpx;%s">%s</text></g>`+"\n",
			x, y, key.symbol, textSize-1, paint("fill", "ink"), escaped(key.name))
		x += width + 18
	}
	return b.String(), y + 26
}

// key is one entry of a legend.
type key struct{ symbol, name string }

func (c Chart) legend() []key {
	var keys []key
	for _, l := range c.Lines {
		keys = append(keys, key{l.symbol(), l.Name})
	}
	for _, a := range c.Areas {
		if a.Name != "" {
			keys = append(keys, key{fmt.Sprintf(`<rect y="-10" width="18" height="12" style="%s"/>`, paint("fill", a.Shade)), a.Name})
		}
	}
	seen := map[memory.Cause]bool{}
	for _, m := range c.Marks {
		if !seen[m.Cause] {
			seen[m.Cause] = true
			keys = append(keys, key{fmt.Sprintf(`<rect y="-10" width="18" height="12" rx="6" style="%s"/>`, paint("fill", CauseShade(m.Cause))), "failed: " + string(m.Cause)})
		}
	}
	return keys
}

func (l Line) symbol() string {
	return fmt.Sprintf(`<path d="M0,-4h18" style="%s"/>`, l.style(max(2, l.Width)))
}

// escaped returns s as XML and HTML text. It replaces characters that XML does not allow.
func escaped(s string) string {
	var b strings.Builder
	if err := xml.EscapeText(&b, []byte(s)); err != nil {
		panic(err) // a strings.Builder never fails
	}
	return b.String()
}
