package report

import (
	"bytes"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"sync"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// Sizes of a chart, in its own units: pixels at full width.
const (
	textSize   = 13
	titleSize  = 16
	legendLine = 20
	dotLimit   = 40 // up to this many points are drawn as dots too
)

// chart is a picture to be drawn.
type chart struct {
	name, title, alt string
	unit             string // of the vertical axis
	across           string // of the horizontal axis; "" means optimizer steps, all that were tried
	width, height    float64
	x0, x1           float64
	y0, y1           float64
	whole            bool // vertical values are whole numbers
	lines            []line
	areas            []area
	marks            []mark
}

// line is a series with its name in the legend.
type line struct {
	name, shade string
	points      series
	dashed      bool
	width       float64
}

// area is what lies between a series and a level.
type area struct {
	name, shade string // without a name it is not in the legend
	points      series
	edge        float64
}

var sans = font.Font{Typeface: "Liberation", Variant: "Sans"}

// svg draws the chart: the inside of an svg element, in placeholder colours.
func (c chart) svg() (string, error) {
	p := plot.New()
	p.BackgroundColor = nil
	for _, a := range c.areas {
		a.points = a.points.thinned(c.width)
		if err := a.add(p); err != nil {
			return "", fmt.Errorf("draw picture %s: %s: %w", c.name, a.name, err)
		}
	}
	c.axes(p)
	for _, l := range c.lines {
		l.points = l.points.thinned(c.width)
		if err := l.add(p); err != nil {
			return "", fmt.Errorf("draw picture %s: %s: %w", c.name, l.name, err)
		}
	}
	p.X.Min, p.X.Max, p.Y.Min, p.Y.Max = c.x0, c.x1, c.y0, c.y1
	canvas := vgsvg.New(vg.Length(c.width), vg.Length(c.height))
	head, headHeight := c.head()
	room := draw.Crop(draw.New(canvas), 4, -12, 4, -vg.Length(headHeight))
	p.Draw(room)
	var text bytes.Buffer
	if _, err := canvas.WriteTo(&text); err != nil {
		return "", fmt.Errorf("draw picture %s: %w", c.name, err)
	}
	data := p.DataCanvas(room)
	x, y := p.Transforms(&data)
	frame := frame{
		x:    func(v float64) float64 { return float64(x(v)) },
		y:    func(v float64) float64 { return c.height - float64(y(v)) },
		left: float64(data.Min.X),
		top:  c.height - float64(data.Max.Y), bottom: c.height - float64(data.Min.Y),
	}
	return inner(text.String()) + head + c.drawValues(frame, float64(data.Max.X)) + c.drawMarks(frame), nil
}

// inner is what gonum drew, without the element around it and without its fonts:
// the page's own font, which is as wide, is used. Paths are shortened.
func inner(svg string) string {
	from, to := strings.Index(svg, "<g transform"), strings.LastIndex(svg, "</svg>")
	body := strings.ReplaceAll(svg[from:to], "font-family:Liberation Sans;font-variant:normal;font-weight:normal;font-style:normal;", "")
	return polylines().ReplaceAllStringFunc(body, func(path string) string {
		return `d="` + shorter(path[len(`d="`):len(path)-1]) + `"`
	})
}

// polylines are paths of straight lines.
var polylines = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`d="M[-0-9.,MLZ]+"`) })

// shorter is a path of straight lines, rounded to a tenth of a unit, with H and V for
// horizontal and vertical ones, and without points that coincide with the one before.
func shorter(path string) string {
	var b strings.Builder
	x, y := "", ""
	for at := 0; at < len(path); {
		kind := path[at]
		end := at + 1
		for end < len(path) && !strings.ContainsRune("MLZ", rune(path[end])) {
			end++
		}
		across, up, _ := strings.Cut(path[at+1:end], ",")
		toX, toY := tenth(across), tenth(up)
		switch {
		case kind == 'Z':
			b.WriteByte('Z')
		case kind == 'M':
			b.WriteString("M" + toX + "," + toY)
		case toX == x && toY == y:
		case toY == y:
			b.WriteString("H" + toX)
		case toX == x:
			b.WriteString("V" + toY)
		default:
			b.WriteString("L" + toX + "," + toY)
		}
		if kind != 'Z' {
			x, y = toX, toY
		}
		at = end
	}
	return b.String()
}

// tenth is a number as text, rounded to one decimal.
func tenth(text string) string {
	v, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return text
	}
	return strconv.FormatFloat(math.Round(10*v)/10+0, 'f', -1, 64) // no -0
}

func (c chart) axes(p *plot.Plot) {
	for _, axis := range []*plot.Axis{&p.X, &p.Y} {
		axis.Padding = 0
		axis.Tick.Length = 0
		axis.Tick.Label.Font = font.From(sans, textSize)
		axis.Tick.Label.Color = paint("muted")
		axis.Label.TextStyle.Font = font.From(sans, textSize)
		axis.Label.TextStyle.Color = paint("muted")
		axis.Color = paint("muted")
	}
	p.Y.Width = 0
	p.Y.Padding = 6
	p.X.Width = 1
	p.X.Label.Text = c.across
	p.X.Label.Padding = 4
	p.X.Tick.Marker = ticks{whole: c.x1-c.x0 > 2, about: int(c.width / 110)}
	p.Y.Tick.Marker = ticks{whole: c.whole, about: int(c.height / 55)}
	grid := plotter.NewGrid()
	grid.Vertical.Color = nil
	grid.Horizontal = draw.LineStyle{Color: paint("grid"), Width: 1}
	p.Add(grid)
}

func (l line) add(p *plot.Plot) error {
	points := 0
	for _, piece := range l.points {
		points += len(piece)
	}
	for _, piece := range l.points {
		drawn, err := plotter.NewLine(plotter.XYs(piece))
		if err != nil {
			return err
		}
		drawn.LineStyle = draw.LineStyle{Color: paint(l.shade), Width: vg.Length(l.width)}
		if l.dashed {
			drawn.Dashes = []vg.Length{6, 4}
		}
		p.Add(drawn)
		if len(piece) > 1 && (l.dashed || points > dotLimit) {
			continue
		}
		dots, err := plotter.NewScatter(plotter.XYs(piece))
		if err != nil {
			return err
		}
		dots.GlyphStyle = draw.GlyphStyle{Color: paint(l.shade), Radius: 2.5, Shape: draw.CircleGlyph{}}
		p.Add(dots)
	}
	return nil
}

func (a area) add(p *plot.Plot) error {
	for _, piece := range a.points {
		outline := append(plotter.XYs(nil), piece...)
		outline = append(outline, plotter.XY{X: piece[len(piece)-1].X, Y: a.edge}, plotter.XY{X: piece[0].X, Y: a.edge})
		filled, err := plotter.NewPolygon(outline)
		if err != nil {
			return err
		}
		filled.Color = paint(a.shade)
		filled.Width = 0
		p.Add(filled)
	}
	return nil
}

// ticks puts marks at 1, 2 or 5 times a power of ten.
type ticks struct {
	whole bool
	about int // how many are wanted
}

// Ticks implements [plot.Ticker].
func (t ticks) Ticks(low, high float64) []plot.Tick {
	unit := (high - low) / float64(max(2, t.about))
	scale := math.Pow(10, math.Floor(math.Log10(unit)))
	step := 10 * scale
	for _, m := range []float64{1, 2, 5} {
		if m*scale >= unit {
			step = m * scale
			break
		}
	}
	if t.whole {
		step = max(1, step)
	}
	var all []plot.Tick
	for i := math.Ceil(low / step); i*step <= high; i++ {
		all = append(all, plot.Tick{Value: i * step, Label: label(i*step, step)})
	}
	return all
}

// label prints v with as many decimals as the distance between labels needs.
func label(v, step float64) string {
	switch {
	case v == 0:
		return "0"
	case step >= 1:
		return count(int64(math.Round(v)))
	case step < 1e-4:
		return fmt.Sprintf("%.1e", v)
	}
	return fmt.Sprintf("%.*f", int(math.Ceil(-math.Log10(step)-1e-9)), v)
}
