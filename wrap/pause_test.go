package wrap

import (
	"slices"
	"testing"
	"time"
)

func TestPause(t *testing.T) {
	const s, old = time.Second, time.Hour
	young := func(n int) []time.Duration { return slices.Repeat([]time.Duration{9 * s}, n) }
	for name, c := range map[string]struct {
		attempts []time.Duration
		wait     time.Duration
		again    bool
	}{
		"the first attempt":          {nil, 0, true},
		"a long attempt":             {[]time.Duration{old}, 0, true},
		"just long enough":           {[]time.Duration{10 * s}, 0, true},
		"just too short":             {[]time.Duration{10*s - 1}, s, true},
		"two in a row":               {young(2), 2 * s, true},
		"six in a row":               {young(6), 32 * s, true},
		"seven: the longest":         {young(7), 60 * s, true},
		"eight: no more":             {young(8), 0, false},
		"fifty":                      {young(50), 0, false},
		"young after a long attempt": {append(young(7), old, s), s, true},
		"old after young":            {append(young(7), old), 0, true},
		"many, never in a row":       {slices.Repeat([]time.Duration{s, old}, 20), 0, true},
		"many, one in a row again":   {append(slices.Repeat([]time.Duration{s, old}, 20), s), s, true},
	} {
		if wait, again := pause(c.attempts); wait != c.wait || again != c.again {
			t.Errorf("%s: %v, %v, want %v, %v", name, wait, again, c.wait, c.again)
		}
	}
}
