package search

import (
	"cmp"
	"math"
	"slices"

	"gonum.org/v1/gonum/stat"
)

// point is a size k that fitted, with its peak in bytes.
type point struct {
	k    int
	peak float64
}

// curve holds the known points, one per size, in ascending order of size.
type curve []point

// with returns the curve with p added. If the curve already has a point of p's size, it
// keeps the one with the larger peak.
func (c curve) with(p point) curve {
	i, found := slices.BinarySearchFunc(c, p, func(a, b point) int { return cmp.Compare(a.k, b.k) })
	if found {
		c[i].peak = max(c[i].peak, p.peak)
		return c
	}
	return slices.Insert(c, i, p)
}

// upTo returns the part of the curve with sizes of at most k.
func (c curve) upTo(k int) curve {
	i, _ := slices.BinarySearchFunc(c, k+1, func(a point, k int) int { return cmp.Compare(a.k, k) })
	return c[:i]
}

// top returns the point of the largest size, or a zero point if there is none.
func (c curve) top() point {
	if len(c) == 0 {
		return point{}
	}
	return c[len(c)-1]
}

// slope returns the slope of a line through two points, in bytes per unit of size. One is
// the point of the largest size; the other is the point of the largest size in the lower
// half of the range seen. Two neighbouring sizes would follow a bend sooner, but the
// noise could be larger than their difference. The curve must have two points.
func (c curve) slope() float64 {
	top := c.top()
	low := c.upTo((c[0].k + top.k) / 2).top()
	return (top.peak - low.peak) / float64(top.k-low.k)
}

// reaches returns the smallest size at which a line that the noise allows can reach the
// given number of bytes. Such a line starts at 0 bytes or more and passes within the
// noise of every point. Each pair of points therefore bounds it: past the later point, it
// cannot lie above the line that leads from the lower end of the noise at the earlier
// point, or from the origin, through the upper end of the noise at the later point. The
// result is the largest size at which one of these bounding lines reaches bytes.
func (c curve) reaches(bytes float64) (size float64) {
	for i, p := range c {
		high := p.peak / (1 - noise)
		for _, q := range append(curve{{}}, c[:i]...) {
			if rise := high - q.peak/(1+noise); rise > 0 {
				size = max(size, float64(p.k)+(bytes-high)*float64(p.k-q.k)/rise)
			}
		}
	}
	return size
}

// foretold reports whether the line through the curve predicted the peak of p, a larger
// size, to within a hundredth of the rise. A line that does not rise predicts nothing.
func (c curve) foretold(p point) bool {
	if len(c) < 2 || p.peak <= c[0].peak {
		return false
	}
	slope := c.slope()
	line := c.top().peak + slope*float64(p.k-c.top().k)
	return math.Abs(p.peak-line) <= 0.01*(p.peak-c[0].peak)
}

// within returns the largest size whose peak is at most limit bytes. Between the
// points, it assumes that the peak follows straight lines. It returns at most the size
// of the top, and 0 if the peak of the first point is above limit.
func (c curve) within(limit float64) int {
	above := slices.IndexFunc(c, func(p point) bool { return p.peak > limit })
	switch above {
	case -1:
		return c.top().k
	case 0:
		return 0
	}
	a, b := c[above-1], c[above]
	return a.k + int((limit-a.peak)/(b.peak-a.peak)*float64(b.k-a.k))
}

// Fit returns the least-squares line through all probes that fitted. The line is zero
// unless at least two different sizes fitted.
func Fit(probes []Probe) Line {
	var n, peak []float64
	for _, p := range probes {
		if p.Fits {
			n, peak = append(n, float64(p.N)), append(peak, float64(p.Peak))
		}
	}
	if len(n) == 0 || slices.Min(n) == slices.Max(n) {
		return Line{}
	}
	base, each := stat.LinearRegression(n, peak, nil, false)
	return Line{Base: base, PerSample: each}
}
