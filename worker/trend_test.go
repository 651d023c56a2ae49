package worker

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"headroom/memory"
)

const mib = memory.Bytes(1) << 20

// grown returns a trend that has followed the given number of steps of half a second each, and its
// forecast after the last step. The device has 80 GiB. After a step, held(step) bytes are
// allocated; at the step's peak, 10 GiB more than that.
func grown(steps int, held func(step int) memory.Bytes) (*trend, forecast, bool) {
	t, begin := &trend{}, time.Date(2026, 11, 22, 2, 0, 0, 0, time.UTC)
	var newest memory.Bytes
	for i := 1; i <= steps; i++ {
		newest = held(i)
		t.add(point{i, begin.Add(time.Duration(i) * time.Second / 2), newest})
	}
	s := memory.Stats{Capacity: 80 * gib, Allocated: newest, Peak: newest + 10*gib, Reserved: newest + 12*gib}
	s.Free = s.Capacity - s.Reserved
	f, ok := t.forecast(s)
	return t, f, ok
}

// TestForecast checks that a leak is reported, with the step at which it ends the run, even
// if other memory varies between batches. Nothing must be reported if there is no leak.
func TestForecast(t *testing.T) {
	random := rand.New(rand.NewPCG(7, 7))
	noise := func(most memory.Bytes) memory.Bytes { return memory.Bytes(random.Int64N(int64(most))) }
	for name, c := range map[string]struct {
		steps int
		held  func(step int) memory.Bytes
		at    int // step at which memory runs out; 0 if nothing is reported
	}{
		"a leak":                       {5000, func(i int) memory.Bytes { return 20*gib + memory.Bytes(i)*mib }, 50 * 1024},
		"among batches of any length":  {5000, func(i int) memory.Bytes { return 20*gib + memory.Bytes(i)*mib + noise(3*gib) }, 50 * 1024},
		"a list is emptied, not all":   {5000, func(i int) memory.Bytes { return 20*gib + memory.Bytes(i)*mib + memory.Bytes(i%100)*20*mib }, 50 * 1024},
		"steady":                       {5000, func(int) memory.Bytes { return 60 * gib }, 0},
		"batches of any length":        {5000, func(int) memory.Bytes { return 60*gib + noise(5*gib) }, 0},
		"grows at first":               {5000, func(i int) memory.Bytes { return 60*gib + min(2*gib, memory.Bytes(i)*20*mib) }, 0},
		"a warm-up of ten steps":       {60, func(i int) memory.Bytes { return min(10, memory.Bytes(i)) * 2 * gib }, 0},
		"too slow for a day":           {100000, func(i int) memory.Bytes { return 20*gib + memory.Bytes(i)*20<<10 }, 0},
		"too few steps":                {45, func(i int) memory.Bytes { return 20*gib + memory.Bytes(i)*gib }, 0},
		"a list that is emptied":       {5000, func(i int) memory.Bytes { return 20*gib + memory.Bytes(i%500)*10*mib }, 0},
		"falls":                        {5000, func(i int) memory.Bytes { return 60*gib - memory.Bytes(i)*mib }, 0},
		"nothing is known, on the CPU": {5000, func(int) memory.Bytes { return 0 }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			followed, f, ok := grown(c.steps, c.held)
			if len(followed.points) > trendPoints {
				t.Errorf("%d points are kept", len(followed.points))
			}
			if ok != (c.at != 0) {
				t.Fatalf("%v, told: %v", f, ok)
			}
			if !ok {
				return
			}
			if off := float64(f.step-c.at) / float64(c.at); off < -0.1 || off > 0.1 {
				t.Errorf("ends near step %d, not %d", f.step, c.at)
			}
			if want := time.Duration(f.step-c.steps) * time.Second / 2; f.left < want*9/10 || f.left > want*11/10 {
				t.Errorf("in %v, not %v", f.left, want)
			}
		})
	}
}

// TestForecastIsTold checks that a forecast is reported in words, once, and again each time that
// half of the remaining time has passed.
func TestForecastIsTold(t *testing.T) {
	followed, f, _ := grown(5000, func(i int) memory.Bytes { return 20*gib + memory.Bytes(i)*mib })
	if want := "memory held between steps grows by 1 MiB per step; at that rate memory runs out in about 6 h 20 min, near step 51"; !strings.HasPrefix(f.String(), want) {
		t.Errorf("%s", f)
	}
	var told []int
	for minutes := 380; minutes >= 0; minutes -= 10 {
		tell, first := followed.news(forecast{left: time.Duration(minutes) * time.Minute})
		if first != (minutes == 380) {
			t.Errorf("at %d it is the first: %v", minutes, first)
		}
		if tell {
			told = append(told, minutes)
		}
	}
	if !slices.Equal(told, []int{380, 190, 90, 40, 20, 10}) {
		t.Errorf("told at %v", told)
	}
	late := &trend{}
	for i := range 3 { // noticed when no time is left
		if tell, first := late.news(forecast{}); tell != (i == 0) || first != (i == 0) {
			t.Errorf("time %d: told %v", i, tell)
		}
	}
}

// TestTrendsNewest checks that newest returns the newest steps and how far apart they are.
func TestTrendsNewest(t *testing.T) {
	var few trend
	if held, every := few.newest(200); held != nil || every != 0 {
		t.Errorf("%v, %d of nothing", held, every)
	}
	followed, _, _ := grown(5000, func(i int) memory.Bytes { return memory.Bytes(i) * mib })
	held, every := followed.newest(memory.LeakWindow)
	if len(held) != memory.LeakWindow || every != 16 || held[len(held)-1] < 4900*mib || held[1]-held[0] != 16*mib {
		t.Errorf("%d held up to %v, %d steps apart", len(held), held[len(held)-1], every)
	}
}
