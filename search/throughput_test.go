package search_test

import (
	"math"
	"testing"

	"headroom/search"
)

func TestEnough(t *testing.T) {
	for _, c := range []struct {
		name            string
		speeds          []search.Speed
		enough, fastest int
	}{
		{"none", nil, 0, 0},
		{"one", []search.Speed{{4, 10}}, 4, 4},
		{"GPT-2 124M, measured", []search.Speed{{3, 157}, {7, 236}, {15, 274}, {22, 291}, {27, 296}, {30, 296.2}}, 27, 30},
		{"ResNet-50, measured", []search.Speed{{46, 3470}, {92, 4040}, {185, 4487}, {277, 4682}, {333, 4772}, {370, 4799}}, 333, 370},
		{"any order", []search.Speed{{30, 296.2}, {3, 157}, {27, 296}}, 27, 30},
		{"slower at the end", []search.Speed{{8, 80}, {16, 100}, {32, 99.5}, {64, 70}}, 16, 16},
		{"exactly 1 %", []search.Speed{{8, 99}, {16, 100}}, 8, 16},
		{"more than 1 %", []search.Speed{{8, 98.9}, {16, 100}}, 16, 16},
		{"a tie", []search.Speed{{16, 100}, {8, 100}}, 8, 8},
		{"not measured", []search.Speed{{2, 0}, {4, math.NaN()}, {8, -1}}, 0, 0},
	} {
		if enough, fastest := search.Enough(c.speeds); enough != c.enough || fastest != c.fastest {
			t.Errorf("%s: %d and %d, want %d and %d", c.name, enough, fastest, c.enough, c.fastest)
		}
	}
}

func TestBetter(t *testing.T) {
	for name, c := range map[string]struct {
		speeds []search.Speed
		n      int
		want   int
	}{
		"the largest is the fastest": {[]search.Speed{{16, 100}, {8, 90}}, 16, 0},
		"a smaller one is":           {[]search.Speed{{16, 88}, {8, 90}, {4, 95}}, 16, 4},
		"by too little":              {[]search.Speed{{16, 100}, {8, 105}}, 16, 0},
		"by enough":                  {[]search.Speed{{16, 100}, {8, 105.1}}, 16, 8},
		"and one as good is smaller": {[]search.Speed{{16, 80}, {8, 100}, {4, 99.5}}, 16, 4},
		"it was not timed":           {[]search.Speed{{8, 100}}, 16, 0},
		"nothing was":                {nil, 16, 0},
		"its speed is not known":     {[]search.Speed{{16, math.NaN()}, {8, 100}}, 16, 0},
	} {
		if got := search.Better(c.speeds, c.n); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}
