package model

import (
	"cmp"
	"math"
)

// ScheduleKind is the shape of the learning-rate schedule after warm-up.
type ScheduleKind string

// The schedules.
const (
	Constant ScheduleKind = "constant" // Optimizer.LR throughout
	Cosine   ScheduleKind = "cosine"   // half a cosine down to Min
	Linear   ScheduleKind = "linear"   // a straight line down to Min
)

// Schedule is the course of the learning rate. The rate rises linearly to
// Optimizer.LR over Warmup steps. After that, it stays there if Kind is
// constant. Otherwise it falls, in the shape that Kind determines, to Min at
// step Steps, and stays at Min.
type Schedule struct {
	Kind   ScheduleKind // [schedule.kind] "" means constant
	Warmup int          // [schedule.warmup] steps
	Steps  int          // [schedule.steps] the step at which Min is reached; not for constant
	Min    float64      // [schedule.min] learning rate at the end; not for constant
}

func (s Schedule) validate(p *problems, lr float64) {
	p.atLeast("schedule.warmup", s.Warmup, 0)
	p.notNegative("schedule.min", s.Min)
	switch cmp.Or(s.Kind, Constant) {
	case Constant:
		if s.Min != 0 {
			p.add("schedule.min %v: has no meaning for schedule.kind constant; leave it out", s.Min)
		}
		return
	case Cosine, Linear:
	default:
		p.add("schedule.kind %q: must be constant, cosine or linear", s.Kind)
		return
	}
	if s.Steps <= s.Warmup {
		p.add("schedule.steps %d: must be above schedule.warmup %d", s.Steps, s.Warmup)
	}
	if s.Min > lr {
		p.add("schedule.min %v: must be at most optimizer.lr %v", s.Min, lr)
	}
}

// at returns the learning rate of a step, counted from 1. lr is the highest
// rate, reached at the end of the warm-up.
func (s Schedule) at(step int, lr float64) float64 {
	if step <= s.Warmup {
		return lr * float64(step) / float64(s.Warmup)
	}
	done := min(1, float64(step-s.Warmup)/float64(max(1, s.Steps-s.Warmup)))
	switch s.Kind {
	case Cosine:
		return s.Min + (lr-s.Min)*(1+math.Cos(math.Pi*done))/2
	case Linear:
		return s.Min + (lr-s.Min)*(1-done)
	}
	return lr
}
