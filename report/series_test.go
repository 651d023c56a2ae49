package report

import (
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func points(s series) []point {
	var all []point
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
		got := points(sample(len(values), func(i int) (x, y float64) { return float64(i), values[i] }))
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
		low, high := sample(n, func(i int) (x, y float64) {
			switch i {
			case up:
				return float64(i), 1
			case down:
				return float64(i), -1
			}
			return float64(i), 0
		}).bounds(0, 0)
		if high != 1 || low != -1 && up != down {
			t.Fatalf("%v to %v", low, high)
		}
	})
}

func TestSampleLeavesGaps(t *testing.T) {
	values := []float64{1, 2, math.NaN(), 3, math.Inf(1), math.Inf(-1), 4, 5}
	s := sample(len(values), func(i int) (x, y float64) { return float64(i), values[i] })
	if len(s) != 3 || len(s[0]) != 2 || len(s[1]) != 1 || len(s[2]) != 2 {
		t.Errorf("got %v", s)
	}
	none := sample(1e5, func(int) (x, y float64) { return 0, math.NaN() })
	if len(none) != 0 {
		t.Errorf("got %v from nothing", none)
	}
}

func TestSampleLeavesOutWhatIsLevel(t *testing.T) {
	values := []float64{1, 1, 1, 1, 2, 2, 3, 3, 3}
	s := sample(len(values), func(i int) (x, y float64) { return float64(i), values[i] })
	var kept []float64
	for _, p := range s[0] {
		kept = append(kept, p.X)
	}
	if len(s) != 1 || !slices.Equal(kept, []float64{0, 3, 4, 5, 6, 8}) {
		t.Errorf("%v are kept", kept)
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

func TestFormat(t *testing.T) {
	tests := []struct{ got, want string }{
		{count(0), "0"}, {count(999), "999"}, {count(1000), "1,000"}, {count(-1234567), "−1,234,567"},
		{plural(1, "step"), "1 step"}, {plural(2000, "step"), "2,000 steps"},
		{span("step", 3, 3), "step 3"}, {span("step", 3, 5), "steps 3 to 5"},
		{number(0), "0"}, {number(3.14159), "3.14"}, {number(99.96), "100"}, {number(50), "50"}, {number(12345), "12,345"}, {number(0.01234), "0.0123"}, {number(-0.41017), "-0.41"}, {number(0.9996), "1"},
		{number(2e-5), "2.0e-05"}, {number(math.NaN()), "not a number"}, {number(math.Inf(1)), "infinite"},
		{percent(0.196), "20 %"}, {percent(0.0123), "1.2 %"}, {percent(0.0001), "< 0.1 %"}, {percent(0), "0 %"}, {percent(math.NaN()), "–"},
		{secondsLasting(0), "0 s"}, {secondsLasting(0.0421), "42 ms"}, {secondsLasting(6.61), "6.6 s"}, {secondsLasting(38.2), "38 s"},
		{secondsLasting(272.7), "4 min 33 s"}, {secondsLasting(1800), "30 min"}, {secondsLasting(30439), "8 h 27 min"}, {secondsLasting(3 * 86400), "3 d 0 h"},
	}
	for _, test := range tests {
		if test.got != test.want {
			t.Errorf("got %q, want %q", test.got, test.want)
		}
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
	s := series{{{X: 1, Y: 10}, {X: 2, Y: 20}, {X: 4, Y: 40}}, {{X: 8, Y: 80}}}
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
