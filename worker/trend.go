package worker

import (
	"fmt"
	"time"

	"headroom/memory"
)

const (
	// trendPoints limits how many steps a trend keeps. When it has that many, it drops
	// every second one, and from then on keeps half as many of the new ones.
	trendPoints = 400
	// trendParts is the number of parts into which the steps are cut. Only the smallest
	// amount of each part counts, because the memory that the command still holds after a
	// step varies with the step's batch.
	trendParts = 20
	// trendWarm is the number of steps at the beginning that are left out, because
	// optimizer state and workspaces are allocated in them.
	trendWarm = 10
)

// trend follows how much memory one process has allocated at the end of each
// optimizer step, from its first step to its last. It reads no clock.
type trend struct {
	every, seen int
	points      []point
	told        time.Duration // the time left in the last reported forecast; 0 if none was reported
}

type point struct {
	step int
	at   time.Time
	held memory.Bytes
}

// add adds a step, unless the trend leaves it out.
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

// forecast says when memory runs out if the memory held keeps growing at the
// same rate.
type forecast struct {
	perStep memory.Bytes
	step    int           // the step at which memory runs out
	left    time.Duration // the time until memory runs out
}

func (f forecast) String() string {
	return fmt.Sprintf("memory held between steps grows by %v per step; at that rate memory runs out in about %s, near step %d", f.perStep, memory.InAbout(f.left.Seconds()), f.step)
}

// forecast returns when the memory that s describes runs out. ok is false while
// the allocated memory does not rise steadily, rises too little to matter, or
// rises so slowly that memory would last for longer than [memory.ForecastMost].
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
	if left*took.Seconds() > memory.ForecastMost {
		return f, false
	}
	return forecast{memory.Bytes(perStep), last.step + int(left), time.Duration(left * float64(took))}, true
}

// newest returns the memory held after each of the newest steps that t has kept, at most
// the given number of them. every is the number of steps from one of these to the next.
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

// forecastLeast is the shortest remaining time for which a forecast is repeated. With
// less time left, it is too late to do anything about the forecast.
const forecastLeast = 2 * time.Minute

// news decides whether a forecast is to be reported, and whether it is the first one. The
// first forecast is always reported. A later one is reported if its remaining time is at
// most half that of the last one reported, and not less than forecastLeast.
func (t *trend) news(f forecast) (tell, first bool) {
	first = t.told == 0
	if !first && (f.left > t.told/2 || f.left < forecastLeast) {
		return false, false
	}
	t.told = max(f.left, 1) // f.left may be 0, but 0 means that none was reported
	return true, first
}
