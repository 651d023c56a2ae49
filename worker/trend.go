package worker

import (
	"fmt"
	"time"

	"headroom/memory"
)

const (
	// trendPoints is how many steps a trend keeps at most: at that number it drops every
	// second one, and adds half as many from then on.
	trendPoints = 400
	// trendParts is how many parts the steps are cut into; the smallest value of each part
	// counts, since what the command still holds of a step varies with its batch.
	trendParts = 20
	// trendWarm is how many steps are left out at first, while optimizer state and
	// workspaces are allocated.
	trendWarm = 10
	// forecastMost is the furthest ahead that a forecast is reported: most runs end sooner.
	forecastMost = 24 * time.Hour
)

// trend follows how much one process has allocated at the end of each optimizer step,
// throughout its life. It is pure.
type trend struct {
	every, seen int
	points      []point
	told        time.Duration // the time left in the forecast reported last; 0 if none was
}

type point struct {
	step int
	at   time.Time
	held memory.Bytes
}

// add adds a step.
func (t *trend) add(p point) {
	if p.step <= trendWarm || p.held <= 0 {
		return
	}
	if t.every == 0 {
		t.every = 1
	}
	if t.seen++; t.seen%t.every != 0 {
		return
	}
	if t.points = append(t.points, p); len(t.points) < trendPoints {
		return
	}
	t.every *= 2
	for i := range len(t.points) / 2 {
		t.points[i] = t.points[2*i+1]
	}
	t.points = t.points[:len(t.points)/2]
}

// forecast is when memory runs out if it keeps growing at the same rate.
type forecast struct {
	perStep memory.Bytes
	step    int           // at which memory runs out
	left    time.Duration // until then
}

func (f forecast) String() string {
	return fmt.Sprintf("memory held between steps grows by %v per step; at that rate memory runs out in about %s, near step %d", f.perStep, inAbout(f.left), f.step)
}

// forecast says when the memory that s describes runs out. ok is false while the
// allocated memory does not rise steadily, rises too little to matter, or rises so
// slowly that memory would last longer than anybody plans ahead.
func (t *trend) forecast(s memory.Stats) (f forecast, ok bool) {
	size := len(t.points) / trendParts
	if size < 2 || s.Capacity <= 0 {
		return f, false
	}
	parts := make([]memory.Bytes, trendParts)
	from := len(t.points) - trendParts*size
	for i := range parts {
		parts[i] = t.points[from+i*size].held
		for _, p := range t.points[from+i*size : from+(i+1)*size] {
			parts[i] = min(parts[i], p.held)
		}
	}
	slope, rises := memory.Rising(parts, s.Capacity)
	first, last := t.points[from], t.points[len(t.points)-1]
	steps := last.step - first.step
	if !rises || steps <= 0 {
		return f, false
	}
	perStep := slope * trendParts / float64(steps)
	left := float64(max(0, s.Available()-max(s.Peak, last.held))) / perStep
	took := last.at.Sub(first.at) / time.Duration(steps)
	if left*took.Seconds() > forecastMost.Seconds() {
		return f, false
	}
	return forecast{memory.Bytes(perStep), last.step + int(left), time.Duration(left * float64(took))}, true
}

// newest is the memory held after each of the newest steps that are kept, at most the given
// number of them; every is the number of steps from one to the next.
func (t *trend) newest(most int) (held []memory.Bytes, every int) {
	points := t.points[max(0, len(t.points)-most):]
	if len(points) < 2 {
		return nil, 0
	}
	for _, p := range points {
		held = append(held, p.held)
	}
	return held, max(1, (points[len(points)-1].step-points[0].step)/(len(points)-1))
}

// forecastLeast is the time left below which a forecast is no longer repeated: by then nobody
// can do anything about it.
const forecastLeast = 2 * time.Minute

// news decides whether a forecast is to be reported, and whether it is the first: the
// first one is, and then each that leaves at most half as much time as the one reported
// last, until little time is left.
func (t *trend) news(f forecast) (tell, first bool) {
	first = t.told == 0
	if !first && (f.left > t.told/2 || f.left < forecastLeast) {
		return false, false
	}
	t.told = max(f.left, 1) // no time at all may be left
	return true, first
}

// inAbout is how long it will be until something happens, the way people say it.
func inAbout(d time.Duration) string {
	switch hours, minutes := int(d.Hours()), int(d.Minutes()); {
	case minutes < 1:
		return "a minute"
	case hours < 1:
		return fmt.Sprintf("%d min", minutes)
	default:
		return fmt.Sprintf("%d h %d min", hours, minutes%60/10*10)
	}
}
