package chart

import (
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func points(s Series) []Point {
	var all []Point
	for _, piece := range s {
		all = append(all, piece...)
	}
	return all
}

// TestSampleKeepsExtremes checks that thinning out keeps the ends and the extremes, in
// order. At most 4 × bucketLimit points may be left, and all of them must be points of
// the original. A short series loses only points within a level stretch.
func TestSampleKeepsExtremes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		values := rapid.SliceOfN(rapid.OneOf(rapid.Float64(), rapid.SampledFrom([]float64{0, 1})), 1, 5000).Draw(t, "values")
		got := points(Sample(len(values), func(i int) (x, y float64) { return float64(i), values[i] }))
		if len(got) > 4*bucketLimit {
			t.Fatalf("%d points", len(got))
		}
		low, high := math.Inf(1), math.Inf(-1)
		for i, p := range got {
			if values[int(p.X)] != p.Y || i > 0 && p.X <= got[i-1].X {
				t.Fatalf("point %d is %v", i, p)
			}
			low, high = min(low, p.Y), max(high, p.Y)
		}
		for _, v := range values {
			if !math.IsInf(v, 0) && (v < low || v > high) {
				t.Fatalf("%v is outside of %v to %v", v, low, high)
			}
		}
		kept := 0 // of few points, all but those within a level stretch
		for i, v := range values {
			if i == 0 || i == len(values)-1 || values[i-1] != v || values[i+1] != v {
				kept++
			}
		}
		if len(values) <= bucketLimit && len(got) != kept {
			t.Fatalf("%d of %d points, though they are few", len(got), kept)
		}
	})
}

// TestSampleKeepsASpike checks that a spike in a single step out of very many stays
// visible.
func TestSampleKeepsASpike(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(bucketLimit, 200_000).Draw(t, "n")
		up, down := rapid.IntRange(0, n-1).Draw(t, "up"), rapid.IntRange(0, n-1).Draw(t, "down")
		low, high := Sample(n, func(i int) (x, y float64) {
			switch i {
			case up:
				return float64(i), 1
			case down:
				return float64(i), -1
			}
			return float64(i), 0
		}).Bounds(0, 0)
		if high != 1 || low != -1 && up != down {
			t.Fatalf("%v to %v", low, high)
		}
	})
}

func TestSampleLeavesGaps(t *testing.T) {
	values := []float64{1, 2, math.NaN(), 3, math.Inf(1), math.Inf(-1), 4, 5}
	s := Sample(len(values), func(i int) (x, y float64) { return float64(i), values[i] })
	if len(s) != 3 || len(s[0]) != 2 || len(s[1]) != 1 || len(s[2]) != 2 {
		t.Errorf("got %v", s)
	}
	none := Sample(1e5, func(int) (x, y float64) { return 0, math.NaN() })
	if len(none) != 0 {
		t.Errorf("got %v from nothing", none)
	}
}

func TestSampleLeavesOutWhatIsLevel(t *testing.T) {
	values := []float64{1, 1, 1, 1, 2, 2, 3, 3, 3}
	s := Sample(len(values), func(i int) (x, y float64) { return float64(i), values[i] })
	var kept []float64
	for _, p := range s[0] {
		kept = append(kept, p.X)
	}
	if len(s) != 1 || !slices.Equal(kept, []float64{0, 3, 4, 5, 6, 8}) {
		t.Errorf("%v are kept", kept)
	}
}

// TestMedians checks that a line of medians has the middle value of each stretch, and
// that there is no such line for only a few points.
func TestMedians(t *testing.T) {
	values := make([]float64, 1000) // stretches of ten: one outlier and one gap in each
	for i := range values {
		values[i] = float64(i/10) + float64(i%10)/100
		if i%10 == 3 {
			values[i] = 1e6
		}
		if i%10 == 4 {
			values[i] = math.NaN()
		}
	}
	at := func(i int) (x, y float64) { return float64(i), values[i] }
	s, wide := medians(len(values), at)
	if wide != 10 || len(s) != 1 || len(s[0]) != 100 {
		t.Fatalf("stretches of %d, %d pieces", wide, len(s))
	}
	for i, p := range s[0] {
		if p.X != float64(10*i+5) || math.Abs(p.Y-(float64(i)+0.06)) > 1e-9 {
			t.Errorf("stretch %d: %v", i, p)
		}
	}
	if s, wide := medians(mediansLeast-1, at); s != nil || wide != 0 {
		t.Errorf("of few points: %v, %d", s, wide)
	}
	if s, _ := medians(40, func(int) (x, y float64) { return 0, math.Inf(1) }); s != nil {
		t.Errorf("of no numbers: %v", s)
	}
}

// TestNear checks which value is shown at the place where the reader points.
func TestNear(t *testing.T) {
	s := Series{{{X: 1, Y: 10}, {X: 2, Y: 20}, {X: 4, Y: 40}}, {{X: 8, Y: 80}}}
	for _, c := range []struct {
		x, reach, want float64
		known          bool
	}{
		{1, 0.1, 10, true}, {2.9, 0.1, 20, true}, {4.05, 0.1, 40, true}, {0.5, 0.1, 0, false}, {0.5, 1, 10, true}, {6, 0.5, 0, false}, {7.5, 1, 80, true}, {9.5, 1, 0, false},
	} {
		if y, ok := s.near(c.x, c.reach); y != c.want || ok != c.known {
			t.Errorf("at %v within %v: %v, %v; want %v, %v", c.x, c.reach, y, ok, c.want, c.known)
		}
	}
}
