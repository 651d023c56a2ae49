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
