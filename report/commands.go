package report

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"headroom/memory"
	"headroom/runs"
)

// trainers returns the steps of the processes that trained. In each attempt, that is the
// process with the most recorded steps.
func trainers(seen []runs.ProcessStep) []runs.ProcessStep {
	type process struct{ attempt, pid int } // a process of another attempt may have the same PID
	lines, most := map[process]int{}, map[int]process{}
	for _, s := range seen {
		p := process{s.Attempt, s.PID}
		if lines[p]++; lines[p] > lines[most[s.Attempt]] {
			most[s.Attempt] = p
		}
	}
	return slices.DeleteFunc(slices.Clone(seen), func(s runs.ProcessStep) bool { return most[s.Attempt].pid != s.PID })
}

// commandsMemory is memoryUse for a wrapped command.
func commandsMemory(seen []runs.ProcessStep) Usage {
	m := Usage{Headroom: math.NaN(), Tightest: math.NaN()}
	for _, s := range seen {
		m.Capacity, m.Peak, m.PeakReserved = max(m.Capacity, s.Memory.Capacity), max(m.Peak, s.Memory.Peak), max(m.PeakReserved, s.Memory.Reserved)
	}
	if m.Capacity > 0 && m.Peak > 0 {
		m.Headroom = 1 - float64(m.Peak)/float64(m.Capacity)
	}
	return m
}

// phases says how much memory was allocated at the end of each phase of a step. It uses
// the newest step for which this is known, and returns "" if there is none.
func phases(seen []runs.ProcessStep) string {
	for _, s := range slices.Backward(seen) {
		switch {
		case s.Forward > 0 && s.Backward > 0:
			return fmt.Sprintf("%v after forward, %v after backward, %v between steps", s.Forward, s.Backward, s.Memory.Allocated)
		case s.Forward > 0: // the backward pass is inside a closure
			return fmt.Sprintf("%v after forward, %v between steps", s.Forward, s.Memory.Allocated)
		}
	}
	return ""
}

// stepsMade returns how many optimizer steps a worker saw in each attempt, by the
// attempt's number. Attempts without steps are left out. seen must hold the steps of only
// one process per attempt.
func stepsMade(seen []runs.ProcessStep) map[int]int {
	made := map[int]int{}
	for _, s := range seen {
		made[s.Attempt] = max(made[s.Attempt], s.Made)
	}
	return made
}

// stepTime returns the mean time of a step in seconds, over all steps that were timed:
// all but the first of each process. If no step was timed, it returns NaN.
func stepTime(seen []runs.ProcessStep) float64 {
	seconds, steps := 0.0, 0
	made := map[int]int{} // steps made up to the previous line, by attempt
	for _, s := range seen {
		if before := made[s.Attempt]; s.Seconds > 0 && before > 0 && s.Made > before {
			steps += s.Made - before
			seconds += s.Seconds * float64(s.Made-before)
		}
		made[s.Attempt] = s.Made
	}
	return seconds / float64(steps)
}

// commandsProgress says how far a wrapped command has got, given the number of steps that
// a worker saw. If several attempts made steps, it counts only those of the newest, because
// steps after the checkpoint that an attempt began from are made again, and the unit of a
// checkpoint's number is the command's own. If no worker saw a step, it gives the step of the
// newest checkpoint instead, or returns "" if that is not known either.
func (r *Report) commandsProgress(steps int) string {
	made := stepsMade(r.seen)
	switch {
	case len(made) > 1:
		return r.newestProgress(made)
	case len(made) == 1:
		return plural(steps, "step")
	case r.Checkpoints.Newest > 0:
		return "newest checkpoint: step " + count(r.Checkpoints.Newest)
	}
	return ""
}

// newestProgress returns the part of commandsProgress that is about the newest attempt with steps.
func (r *Report) newestProgress(made map[int]int) string {
	newest := slices.Max(slices.Collect(maps.Keys(made)))
	text, last := plural(made[newest], "step"), newest
	for _, a := range r.Attempts {
		if a.Number == newest && a.From > 0 {
			text += " after checkpoint " + count(a.From)
		}
		last = max(last, a.Number)
	}
	return fmt.Sprintf("%s in attempt %d of %d", text, newest, last)
}

// startTime returns how many seconds an attempt took from its start until its process began its
// first step, or 0 if that is not known.
func startTime(seen []runs.ProcessStep, a Attempt) float64 {
	for _, s := range seen {
		if s.Attempt != a.Number {
			continue
		}
		step := stepTime(seen)
		if s.Made != 1 || math.IsNaN(step) {
			return 0
		}
		return max(0, s.Time.Sub(a.Begin).Seconds()-step)
	}
	return 0
}

// worked returns the number of the newest attempt in which a wrapped command is known to
// have finished a step, or 0 if there is none. This is known if a worker saw a step, if a
// checkpoint was written, or if the command finished.
func (r *Report) worked() int {
	newest := r.Checkpoints.attempt
	for attempt := range stepsMade(r.seen) {
		newest = max(newest, attempt)
	}
	if last := r.Last(); last != nil && r.Outcome.State == Finished {
		newest = max(newest, last.Number)
	}
	return newest
}

// stepsCard says how many steps the processes of a wrapped command ran, and how fast.
func (r *Report) stepsCard() Card {
	c := Card{Question: "Steps", Tone: Info, unknown: len(r.seen) == 0}
	c.Answer = plural(r.Outcome.Steps, "optimizer step")
	if processes := len(stepsMade(r.seen)); processes > 1 {
		c.Note = fmt.Sprintf("in %d processes; repeated steps are counted each time", processes)
	}
	if mean := stepTime(r.seen); !math.IsNaN(mean) {
		c.Answer += fmt.Sprintf(", %s s each on average", number(mean))
	}
	return c
}

// commandPictures returns the pictures of a wrapped command. There are none if fewer than
// two steps were seen. Without a GPU, there is no picture of memory.
func commandPictures(r *Report) []Picture {
	if len(r.seen) < 2 {
		return nil
	}
	first, steps := r.seen[0].Time, r.seen
	length, unit, name := steps[len(steps)-1].Time.Sub(first), time.Second, "seconds"
	switch {
	case length > 3*time.Hour:
		unit, name = time.Hour, "hours"
	case length > 3*time.Minute:
		unit, name = time.Minute, "minutes"
	}
	when := func(t time.Time) float64 { return float64(t.Sub(first)) / float64(unit) }
	of := func(value func(runs.ProcessStep) float64) series {
		return sample(len(steps), func(i int) (x, y float64) { return when(steps[i].Time), value(steps[i]) })
	}
	in, amounts := amountsOf(r.Memory.Capacity)
	held := func(what func(memory.Stats) memory.Bytes) series {
		return of(func(s runs.ProcessStep) float64 { return in(what(s.Memory)) })
	}
	phase := func(at func(runs.ProcessStep) memory.Bytes) series {
		return of(func(s runs.ProcessStep) float64 {
			if at(s) == 0 {
				return math.NaN()
			}
			return in(at(s))
		})
	}
	allocated := held(func(s memory.Stats) memory.Bytes { return s.Allocated })
	speed := of(func(s runs.ProcessStep) float64 { return 1 / s.Seconds })
	pieces := of(func(s runs.ProcessStep) float64 { return float64(max(1, s.Pieces)) })
	_, fastest := speed.bounds(0, 0)
	_, most := pieces.bounds(0, 1)
	charts := []chart{{
		name: "memory", title: "Memory against capacity", unit: amounts, y1: 1.08 * in(max(1, r.Memory.Capacity)),
		alt: fmt.Sprintf("up to %v of %v", r.Memory.Peak, known(r.Memory.Capacity)),
		lines: []line{
			{name: "reserved", shade: "teal", points: held(func(s memory.Stats) memory.Bytes { return s.Reserved }), width: 5},
			{name: "between steps", shade: "blue", points: allocated, width: 2},
			{name: "after forward", shade: "orange", points: phase(func(s runs.ProcessStep) memory.Bytes { return s.Forward }), width: 1.5},
			{name: "after backward", shade: "magenta", points: phase(func(s runs.ProcessStep) memory.Bytes { return s.Backward }), width: 1.5},
			{name: "highest so far", shade: "violet", points: held(func(s memory.Stats) memory.Bytes { return s.Peak }), width: 1.5},
			{name: "capacity", shade: "ink", points: held(func(s memory.Stats) memory.Bytes { return s.Capacity }), width: 1.5, dashed: true},
		},
		areas: []area{{shade: "bluefill", points: allocated}},
	}, {
		name: "throughput", title: "Throughput", unit: "optimizer steps per second", y1: 1.12 * fastest,
		alt:   "optimizer steps per second over time",
		lines: []line{{name: "newest steps", shade: "blue", points: speed, width: 1.5}},
	}, {
		name: "pieces", title: "Pieces of a batch", unit: "pieces", whole: true, y1: 1.12 * most,
		alt:   fmt.Sprintf("up to %.0f", most),
		lines: []line{{name: "pieces per batch", shade: "blue", points: pieces.stepped(), width: 2}},
	}}
	charts[1] = charts[1].smoothed("reading", len(steps), func(i int) (x, y float64) { return when(steps[i].Time), 1 / steps[i].Seconds })
	if r.Memory.Peak == 0 {
		charts = charts[1:]
	}
	if most <= 1 {
		charts = charts[:len(charts)-1]
	}
	for i := range charts {
		c := &charts[i]
		c.across, c.x0, c.x1 = name+" since the first step", 0, max(when(steps[len(steps)-1].Time), 1e-3)
		for _, row := range r.Ledger {
			if row.Failed { // the time of the failure may lie off the axis, as in the first step or in the last one tried
				c.marks = append(c.marks, markOf(row, "", min(max(c.x0, when(row.Time)), c.x1), math.NaN()))
			}
		}
	}
	return drawn(r, charts)
}
