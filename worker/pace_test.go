package worker

import (
	"math"
	"testing"
	"time"
)

// TestPace checks that the number of lines recorded stays manageable however long the run
// is, and that each line gives the average time of a step since the line before.
func TestPace(t *testing.T) {
	for name, c := range map[string]struct {
		length, step time.Duration
		least, most  int
	}{
		"a minute of short steps": {time.Minute, 7 * time.Millisecond, 55, 61},
		"a minute of long steps":  {time.Minute, 20 * time.Second, 4, 4},
		"a night":                 {8 * time.Hour, 500 * time.Millisecond, 3000, 4500},
		"a week":                  {7 * 24 * time.Hour, 2 * time.Second, 5000, 8500},
	} {
		var p pace
		begin, lines := time.Date(2026, 11, 22, 2, 0, 0, 0, time.UTC), 0
		for i := 0; time.Duration(i)*c.step <= c.length; i++ {
			seconds, ok := p.due(begin.Add(time.Duration(i)*c.step), i+1)
			if !ok {
				continue
			}
			if lines++; lines > 1 && math.Abs(seconds-c.step.Seconds()) > 1e-6 {
				t.Fatalf("%s: a step of %v is said to take %v s", name, c.step, seconds)
			}
		}
		if lines < c.least || lines > c.most {
			t.Errorf("%s: %d lines, want %d to %d", name, lines, c.least, c.most)
		}
	}
	var p pace
	now := time.Now()
	_, first := p.due(now, 5)
	if _, again := p.due(now.Add(time.Hour), 5); !first || again {
		t.Error("a step is written down twice, or the first is not")
	}
}
