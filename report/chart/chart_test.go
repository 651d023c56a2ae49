package chart

import (
	"math"
	"testing"
)

// TestPath checks that a path's points are in the right place, to a tenth of a unit, and
// that no point is written twice.
func TestPath(t *testing.T) {
	f := frame{x: func(v float64) float64 { return v }, y: func(v float64) float64 { return v }}
	for want, points := range map[string][]Point{
		"M30.6,222.6H30.8V222.9H31": {{30.572, 222.64}, {30.787, 222.64}, {30.787, 222.87}, {31.003, 222.87}},
		"M1,2l0.2,0.9l1-0.4":        {{1, 2}, {1.04, 2.04}, {1.2, 2.9}, {2.2, 2.5}},
		"M0,-12H10":                 {{-0.04, -12}, {10, -12}},
	} {
		if got := path(points, f); got != want {
			t.Errorf("%v became %s, want %s", points, got, want)
		}
	}
}

// TestFrame checks that the labels of both axes are inside the picture.
func TestFrame(t *testing.T) {
	for _, c := range []Chart{
		{width: 460, height: 300, X0: 1, X1: 10_000, Y0: 0, Y1: 1},
		{width: 1140, height: 360, X0: 0.5, X1: 1_000_000, Y0: -3e-5, Y1: 2e-5},
		{width: 460, height: 300, X0: 1, X1: 2, Y0: 0, Y1: 123_456_789},
	} {
		across, up := ticks(c.X0, c.X1, 4, true), ticks(c.Y0, c.Y1, 5, false)
		f := c.frame(70, across, up)
		for _, label := range across {
			if half, x := textWidth(label.label, textSize)/2, f.x(label.value); x-half < 0 || x+half > c.width || x < f.left || x > f.right {
				t.Errorf("%+v: label %s at %g", c, label.label, x)
			}
		}
		for _, label := range up {
			if y := f.y(label.value); f.left-6-textWidth(label.label, textSize) < 0 || y < 69.9 || y > f.bottom+0.1 {
				t.Errorf("%+v: label %s at %g", c, label.label, y)
			}
		}
		if f.y(c.Y0) != f.bottom || math.Abs(f.y(c.Y1)-f.top) > 1e-6 || f.x(c.X0) != f.left || math.Abs(f.x(c.X1)-f.right) > 1e-6 {
			t.Errorf("%+v: the frame is not filled: %+v", c, f)
		}
	}
}

func TestTicks(t *testing.T) {
	tests := []struct {
		low, high float64
		whole     bool
		want      string
	}{
		{0, 26, false, "0 10 20"},
		{0, 0.00033, false, "0 0.0001 0.0002 0.0003"},
		{0, 2, true, "0 1 2"},
		{1, 1e6, true, "200,000 400,000 600,000 800,000 1,000,000"},
		{-1, 1, false, "-1.0 -0.5 0 0.5 1.0"},
	}
	for _, test := range tests {
		got := ""
		for i, tick := range ticks(test.low, test.high, 5, test.whole) {
			if i > 0 {
				got += " "
			}
			got += tick.label
		}
		if got != test.want {
			t.Errorf("%v to %v: %s, want %s", test.low, test.high, got, test.want)
		}
	}
}
