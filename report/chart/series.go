package chart

import (
	"math"
	"slices"

	"headroom/report/words"
)

// bucketLimit is how many buckets a long series is cut into: about one for every three
// pixels of the widest picture. Each bucket keeps at most four points.
const bucketLimit = 400

// Series is the data of a line: pieces of finite points. Between two pieces there is a
// gap, where the value is not finite.
type Series [][]Point

// Point is one point of a series, in the units of the axes.
type Point struct{ X, Y float64 }

// Sample reads n points and thins them out. In every bucket, the first, lowest, highest
// and last finite point stay, in their order, so that no extreme is lost (the M4
// aggregation of Jugel et al., 2014). A short series stays as it is, except for points
// within a level stretch.
func Sample(n int, at func(i int) (x, y float64)) Series {
	var s Series
	open := false
	buckets := min(n, bucketLimit)
	for b := range buckets {
		kept := bucket(b*n/buckets, (b+1)*n/buckets, at)
		if len(kept) == 0 {
			open = false
			continue
		}
		if !open {
			s, open = append(s, nil), true
		}
		s[len(s)-1] = append(s[len(s)-1], kept...)
	}
	for i := range s {
		s[i] = level(s[i])
	}
	return s
}

// level leaves out the points between the first and the last point of each level stretch.
func level(points []Point) []Point {
	kept := points[:0:0]
	for i, p := range points {
		if i == 0 || i == len(points)-1 || points[i-1].Y != p.Y || points[i+1].Y != p.Y {
			kept = append(kept, p)
		}
	}
	return kept
}

// bucket returns the first, lowest, highest and last finite point in [from, to), in order
// and without repeats.
func bucket(from, to int, at func(i int) (x, y float64)) []Point {
	first, low, high, last := -1, -1, -1, -1
	var least, most float64
	for i := from; i < to; i++ {
		_, y := at(i)
		if math.IsNaN(y) || math.IsInf(y, 0) {
			continue
		}
		if first < 0 {
			first, low, high, least, most = i, i, i, y, y
		}
		if y < least {
			low, least = i, y
		}
		if y > most {
			high, most = i, y
		}
		last = i
	}
	if first < 0 {
		return nil
	}
	var kept []Point
	previous := -1
	for _, i := range []int{first, min(low, high), max(low, high), last} {
		if i == previous {
			continue
		}
		x, y := at(i)
		kept = append(kept, Point{X: x, Y: y})
		previous = i
	}
	return kept
}

// thinned returns s for a picture of the given width. A piece with more than about one
// point for every three pixels keeps only its ends, and the lowest and the highest point
// of every stretch.
func (s Series) thinned(width float64) Series {
	limit := int(width / 6)
	all := make(Series, len(s))
	for i, piece := range s {
		if all[i] = piece; len(piece) <= 2*limit {
			continue
		}
		all[i] = []Point{piece[0]}
		for b := range limit {
			stretch := piece[b*len(piece)/limit : (b+1)*len(piece)/limit]
			low, high := 0, 0
			for j, p := range stretch {
				if p.Y < stretch[low].Y {
					low = j
				}
				if p.Y > stretch[high].Y {
					high = j
				}
			}
			all[i] = append(all[i], stretch[min(low, high)], stretch[max(low, high)])
		}
		all[i] = append(all[i], piece[len(piece)-1])
	}
	return all
}

// Bounds widens low and high so that all points of s lie between them.
func (s Series) Bounds(low, high float64) (float64, float64) {
	for _, piece := range s {
		for _, p := range piece {
			low, high = min(low, p.Y), max(high, p.Y)
		}
	}
	return low, high
}

// Stepped returns s with level lines in place of slopes, because a value holds for a
// whole optimizer step. The value changes halfway between two points.
func (s Series) Stepped() Series {
	stepped := make(Series, len(s))
	for i, piece := range s {
		for j, p := range piece {
			if j > 0 && piece[j-1].Y != p.Y {
				middle := (piece[j-1].X + p.X) / 2
				stepped[i] = append(stepped[i], Point{X: middle, Y: piece[j-1].Y}, Point{X: middle, Y: p.Y})
			}
			stepped[i] = append(stepped[i], p)
		}
	}
	return stepped
}

// mediansLeast is the smallest number of steps for which medians say more than the steps
// themselves.
const mediansLeast = 20

// medians cuts n points into up to about a hundred stretches of equal length, at least
// five points each. It returns the median of each stretch, placed at its middle, and
// leaves out values that are not finite. wide is the length of a stretch, or 0 if there
// are too few points.
func medians(n int, at func(i int) (x, y float64)) (s Series, wide int) {
	if n < mediansLeast {
		return nil, 0
	}
	wide = max(5, n/100)
	var points []Point
	for from := 0; from+wide <= n; from += wide {
		var values []float64
		for i := from; i < from+wide; i++ {
			if _, y := at(i); !math.IsNaN(y) && !math.IsInf(y, 0) {
				values = append(values, y)
			}
		}
		if len(values) == 0 {
			continue
		}
		slices.Sort(values)
		x, _ := at(from + wide/2)
		points = append(points, Point{X: x, Y: values[len(values)/2]})
	}
	if len(points) == 0 {
		return nil, 0
	}
	return Series{points}, wide
}

// near returns the value of s at x: that of the last point at or before x, or else that
// of the next point if it is within reach. ok is false if x is in a gap.
func (s Series) near(x, reach float64) (y float64, ok bool) {
	for _, piece := range s {
		if len(piece) == 0 || piece[0].X > x+reach || piece[len(piece)-1].X < x-reach {
			continue
		}
		after, _ := slices.BinarySearchFunc(piece, x, func(p Point, x float64) int {
			if p.X <= x {
				return -1
			}
			return 1
		})
		return piece[max(0, after-1)].Y, true
	}
	return 0, false
}

// Smoothed returns c with a line of medians over its only line, which turns pale. at
// returns the n points of the original line. what names one point, in the singular.
func (c Chart) Smoothed(what string, n int, at func(i int) (x, y float64)) Chart {
	if smooth, wide := medians(n, at); wide > 0 {
		c.Lines[0].Shade, c.Lines[0].Width = "muted", 0.75
		c.Lines = append(c.Lines, Line{Name: "median of " + words.Plural(wide, what), Shade: "blue", Points: smooth, Width: 2})
	}
	return c
}
