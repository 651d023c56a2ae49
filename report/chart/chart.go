// Package chart draws the charts of a report as SVG. A [Chart] says what is to be seen: lines
// and areas through series of points, and marks where memory ran out. [Draw] makes the
// pictures of a page from the page's charts. A picture has at most a few thousand points,
// which include the extreme values, however long the series was: see [Sample].
//
// A chart's texts are escaped when it is drawn. Nothing here knows of a run, and everything
// is safe for concurrent use as long as nobody changes a value.
package chart

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"sync"

	"codeberg.org/go-fonts/liberation/liberationsansregular"
	"golang.org/x/image/font"
	"golang.org/x/image/font/sfnt"
	"golang.org/x/image/math/fixed"

	"headroom/report/words"
)

// Sizes in a chart's own units. At full width, a unit is a pixel.
const (
	textSize   = 13
	titleSize  = 16
	lineHeight = 16 // height of a line of labels
	legendLine = 20
	wideChart  = 1140
	dotLimit   = 40 // a line of up to this many points also has dots
)

// Chart describes a picture that has yet to be drawn.
type Chart struct {
	Name, Title, Alt string  // as in a [Picture]
	Unit             string  // unit of the vertical axis; may be empty
	Across           string  // what the horizontal axis shows
	X0, X1           float64 // ends of the horizontal axis
	Y0, Y1           float64 // ends of the vertical axis; if they are equal, the axis encloses all points
	Whole            bool    // vertical values are whole numbers
	Lines            []Line  // those drawn later cover the earlier ones
	Areas            []Area  // behind the lines
	Marks            []Mark  // in the order of X

	width, height float64
}

// Line is a series and the name that it has in the legend.
type Line struct {
	Name, Shade string
	Points      Series
	Dashed      bool
	Width       float64
	Moment      bool // it stands upright at one place of the horizontal axis, and has no values
}

// Area is the area between a series and a level.
type Area struct {
	Name, Shade string // an area without a name is not in the legend
	Points      Series
	Edge        float64
}

// Steps is the name of a horizontal axis that counts optimizer steps.
const Steps = "optimizer step"

// frame is the part of a chart in which the lines are drawn. Its functions x and y map
// values to places on the chart.
type frame struct {
	left, right, top, bottom float64
	x, y                     func(float64) float64
}

// frame computes the chart's frame. It leaves room for the head above it and for the
// labels of the axes.
func (c Chart) frame(head float64, across, up []tick) frame {
	wide := 0.0
	for _, t := range up {
		wide = max(wide, textWidth(t.label, textSize))
	}
	f := frame{left: 4 + wide + 6, right: c.width - 12, top: head, bottom: c.height - 2*lineHeight - 8}
	if n := len(across); n > 0 { // the last label must not be cut off
		free := (f.right - f.left) * (c.X1 - across[n-1].value) / (c.X1 - c.X0)
		f.right -= max(0, textWidth(across[n-1].label, textSize)/2-free-10)
	}
	f.x = func(v float64) float64 { return f.left + (v-c.X0)/(c.X1-c.X0)*(f.right-f.left) }
	f.y = func(v float64) float64 { return f.bottom - (v-c.Y0)/(c.Y1-c.Y0)*(f.bottom-f.top) }
	return f
}

// svg draws the chart and returns the content of its svg element.
func (c Chart) svg() string {
	head, height := c.head()
	across := ticks(c.X0, c.X1, int(c.width/110), c.X1-c.X0 > 2)
	up := ticks(c.Y0, c.Y1, int(c.height/55), c.Whole)
	f := c.frame(height, across, up)
	var b strings.Builder
	for _, a := range c.Areas {
		a.draw(&b, f, c.width)
	}
	c.axes(&b, f, across, up)
	for _, l := range c.Lines {
		l.draw(&b, f, c.width)
	}
	b.WriteString(head)
	b.WriteString(c.drawValues(f))
	b.WriteString(c.drawMarks(f))
	return b.String()
}

// axes draws the labels of both axes, a grid line for each label of the vertical axis, and
// the horizontal axis.
func (c Chart) axes(b *strings.Builder, f frame, across, up []tick) {
	label := func(x, y float64, anchor, text string) {
		fmt.Fprintf(b, `<text x="%s" y="%s" text-anchor="%s" style="font-size:%dpx;%s">%s</text>`+"\n",
			tenth(x), tenth(y), anchor, textSize, paint("fill", "muted"), escaped(text))
	}
	for _, t := range up {
		y := tenth(f.y(t.value))
		fmt.Fprintf(b, `<path d="M%s,%sH%s" style="fill:none;%s"/>`, tenth(f.left), y, tenth(f.right), paint("stroke", "grid"))
	}
	fmt.Fprintf(b, `<path d="M%s,%sH%s" style="fill:none;%s"/>`+"\n", tenth(f.left), tenth(f.bottom), tenth(f.right), paint("stroke", "muted"))
	label((f.left+f.right)/2, c.height-8, "middle", c.Across)
	for _, t := range across {
		label(f.x(t.value), f.bottom+lineHeight, "middle", t.label)
	}
	for _, t := range up {
		label(f.left-6, f.y(t.value)+0.35*textSize, "end", t.label)
	}
}

func (l Line) draw(b *strings.Builder, f frame, width float64) {
	points := 0
	for _, piece := range l.Points {
		points += len(piece)
	}
	for _, piece := range l.Points.thinned(width) {
		fmt.Fprintf(b, `<path d="%s" style="%s"/>`+"\n", path(piece, f), l.style(l.Width))
		if len(piece) > 1 && (l.Dashed || points > dotLimit) {
			continue
		}
		for _, p := range piece {
			fmt.Fprintf(b, `<circle cx="%s" cy="%s" r="2.5" style="%s"/>`, tenth(f.x(p.X)), tenth(f.y(p.Y)), paint("fill", l.Shade))
		}
	}
}

// style returns the SVG style of the line when it is drawn with the given width.
func (l Line) style(width float64) string {
	style := fmt.Sprintf("fill:none;%s;stroke-width:%s", paint("stroke", l.Shade), tenth(width))
	if l.Dashed {
		style += ";stroke-dasharray:6,4"
	}
	return style
}

func (a Area) draw(b *strings.Builder, f frame, width float64) {
	for _, piece := range a.Points.thinned(width) {
		fmt.Fprintf(b, `<path d="%sV%sH%sZ" style="%s"/>`+"\n", path(piece, f), tenth(f.y(a.Edge)), tenth(f.x(piece[0].X)), paint("fill", a.Shade))
	}
}

// path returns an SVG path through the points, rounded to a tenth of a unit. It uses H and
// V for horizontal and vertical lines, and leaves out a point that coincides with the
// previous one. All other lines are relative to the previous point, which halves the size
// of the path.
func path(points []Point, f frame) string {
	var b strings.Builder
	x, y := 0.0, 0.0
	for i, p := range points {
		toX, toY := math.Round(10*f.x(p.X)), math.Round(10*f.y(p.Y))
		switch {
		case i == 0:
			b.WriteString("M" + tenth(toX/10) + "," + tenth(toY/10))
		case toX == x && toY == y:
		case toY == y:
			b.WriteString("H" + tenth(toX/10))
		case toX == x:
			b.WriteString("V" + tenth(toY/10))
		default:
			to := tenth((toY - y) / 10)
			if to[0] != '-' {
				to = "," + to
			}
			b.WriteString("l" + tenth((toX-x)/10) + to)
		}
		x, y = toX, toY
	}
	return b.String()
}

// tenth returns v as text, rounded to one decimal.
func tenth(v float64) string {
	return strconv.FormatFloat(math.Round(10*v)/10+0, 'f', -1, 64) // no -0
}

// sans is a font whose characters have the same widths as those of the page's font.
var sans = sync.OnceValue(func() *sfnt.Font {
	font, err := sfnt.Parse(liberationsansregular.TTF)
	if err != nil {
		panic("chart: the font that text is measured with: " + err.Error())
	}
	return font
})

// textWidth returns the width of s at the given font size, both in the chart's units. It
// is safe for concurrent use.
func textWidth(s string, size float64) float64 {
	const em = 1000
	var buffer sfnt.Buffer
	width := 0.0
	for _, r := range s {
		glyph, err := sans().GlyphIndex(&buffer, r)
		if err != nil {
			continue
		}
		if advance, err := sans().GlyphAdvance(&buffer, glyph, fixed.I(em), font.HintingNone); err == nil {
			width += float64(advance) / 64
		}
	}
	return width * size / em
}

// tick is a labelled place on an axis.
type tick struct {
	value float64
	label string
}

// ticks returns labelled places between low and high, spaced by 1, 2 or 5 times a power of
// ten. The argument about is their approximate number.
func ticks(low, high float64, about int, whole bool) []tick {
	unit := (high - low) / float64(max(2, about))
	scale := math.Pow(10, math.Floor(math.Log10(unit)))
	step := 10 * scale
	for _, m := range []float64{1, 2, 5} {
		if m*scale >= unit {
			step = m * scale
			break
		}
	}
	if whole {
		step = max(1, step)
	}
	var all []tick
	for i := math.Ceil(low / step); i*step <= high; i++ {
		all = append(all, tick{i * step, label(i*step, step)})
	}
	return all
}

// label returns v as text, with as many decimals as are needed to tell apart labels that
// differ by step.
func label(v, step float64) string {
	switch {
	case v == 0:
		return "0"
	case step >= 1:
		return words.Count(int64(math.Round(v)))
	case step < 1e-4:
		return fmt.Sprintf("%.1e", v)
	}
	return fmt.Sprintf("%.*f", int(math.Ceil(-math.Log10(step)-1e-9)), v)
}
