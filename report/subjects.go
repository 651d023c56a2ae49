package report

import (
	"fmt"
	"math"
	"slices"

	"headroom/memory"
	"headroom/runs"
)

// overshoot is the largest value on the vertical axis of the memory picture, as a
// multiple of the capacity. Failures that needed more are marked at the top of the
// picture.
const overshoot = 1.3

func memoryChart(r *Report) chart {
	in, name := amountsOf(r.Memory.Capacity)
	of := func(amount func(memory.Stats) memory.Bytes) series {
		return along(r, func(s *runs.StepReport) float64 { return in(amount(s.Memory)) }).stepped()
	}
	allocated := of(func(s memory.Stats) memory.Bytes { return s.Peak })
	capacity := of(func(s memory.Stats) memory.Bytes { return s.Capacity })
	if len(capacity) == 0 && r.Memory.Capacity > 0 {
		x0, x1 := stepRange(r)
		capacity = series{{{X: x0, Y: in(r.Memory.Capacity)}, {X: x1, Y: in(r.Memory.Capacity)}}}
	}
	c := chart{
		name: "memory", title: "Memory against capacity", unit: name,
		alt:   memoryAlt(r),
		marks: marksOf(r, func(row Row) float64 { return in(row.Needed) }),
		lines: []line{
			// The first line is wide, so that it can be seen where the second covers it.
			{name: "peak reserved", shade: "teal", points: of(func(s memory.Stats) memory.Bytes { return s.PeakReserved }), width: 5},
			{name: "peak allocated", shade: "blue", points: allocated, width: 2},
		},
		areas: []area{{shade: "bluefill", points: allocated, edge: 0}},
	}
	if slices.ContainsFunc(r.steps, func(s runs.StepReport) bool { return s.Memory.Foreign > 0 }) {
		room := of(memory.Stats.Available)
		c.areas = append(c.areas, area{name: "held by other processes", shade: "violetfill", points: room, edge: in(r.Memory.Capacity)})
		c.lines = append(c.lines, line{name: "available to this run", shade: "violet", points: room, width: 1.5})
	}
	c.lines = append(c.lines, line{name: "capacity", shade: "ink", points: capacity, width: 1.5, dashed: true})
	top := in(r.Memory.Capacity)
	for _, m := range c.marks {
		if m.value > c.y1 {
			c.y1 = m.value
		}
	}
	_, c.y1 = allocated.bounds(0, c.y1)
	if top > 0 {
		c.y1 = max(1.08*top, min(1.05*c.y1, overshoot*top))
	}
	return c
}

func memoryAlt(r *Report) string {
	m := r.Memory
	if m.Peak == 0 {
		return fmt.Sprintf("%s; the capacity was %v", r.Failures.Summary, m.Capacity)
	}
	return fmt.Sprintf("the peak was %v of %v at step %s; %s", m.Peak, m.Capacity, count(m.PeakStep), r.Failures.Summary)
}

// amountsOf chooses the unit for amounts of memory that are shown together with a
// capacity, and returns its name. The function in converts an amount to that unit, or to
// NaN if the amount is not known.
func amountsOf(capacity memory.Bytes) (in func(memory.Bytes) float64, name string) {
	unit, name := memoryUnit(capacity)
	return func(b memory.Bytes) float64 {
		if b <= 0 {
			return math.NaN()
		}
		return float64(b) / float64(unit)
	}, name
}

func memoryUnit(capacity memory.Bytes) (memory.Bytes, string) {
	switch {
	case capacity >= 2*memory.GiB:
		return memory.GiB, "GiB"
	case capacity >= 2*memory.MiB:
		return memory.MiB, "MiB"
	}
	return memory.KiB, "KiB"
}

func microChart(r *Report) chart {
	micro := along(r, func(s *runs.StepReport) float64 {
		if len(s.Splits) == 0 {
			return math.NaN()
		}
		return float64(slices.Max(s.Splits))
	})
	accumulation := along(r, func(s *runs.StepReport) float64 {
		if len(s.Splits) == 0 {
			return math.NaN()
		}
		return float64(len(s.Splits))
	})
	_, high := micro.bounds(0, 1)
	_, high = accumulation.bounds(0, high)
	return chart{
		name: "micro-batch", title: "Micro-batch and accumulation", whole: true, y1: 1.12 * high,
		alt:   fmt.Sprintf("for each step, its largest micro-batch and the number of its micro-batches; the run cut its steps in %s", plural(len(r.Sizes), "way")),
		marks: marksOf(r, atTop),
		lines: []line{
			{name: "samples at once", shade: "blue", points: micro.stepped(), width: 2},
			{name: "micro-batches per step", shade: "teal", points: accumulation.stepped(), width: 2, dashed: true},
		},
	}
}

func throughputChart(r *Report) chart {
	speed := along(r, rate)
	_, high := speed.bounds(0, 0)
	c := chart{
		name: "throughput", title: "Throughput", unit: "samples per second", y1: 1.12 * high,
		alt:   fmt.Sprintf("the median is %s samples per second", number(r.Speed.Median)),
		marks: marksOf(r, atTop),
		lines: []line{{name: "each step", shade: "blue", points: speed, width: 1.5}},
	}
	return c.smoothed("step", len(r.steps), func(i int) (x, y float64) { return float64(r.steps[i].Step), rate(&r.steps[i]) })
}

// smoothed returns c with a line of medians over its only line, which turns pale. at
// returns the n points of the original line. what names one point, in the singular.
func (c chart) smoothed(what string, n int, at func(i int) (x, y float64)) chart {
	if smooth, wide := medians(n, at); wide > 0 {
		c.lines[0].shade, c.lines[0].width = "muted", 0.75
		c.lines = append(c.lines, line{name: "median of " + plural(wide, what), shade: "blue", points: smooth, width: 2})
	}
	return c
}

func lossChart(r *Report) chart {
	return chart{
		name: "loss", title: "Loss",
		alt:   fmt.Sprintf("from %s to %s, lowest %s at step %s", number(r.Loss.First), number(r.Loss.Last), number(r.Loss.Lowest), count(r.Loss.LowestStep)),
		marks: marksOf(r, atTop),
		lines: []line{{name: "each step", shade: "blue", points: along(r, func(s *runs.StepReport) float64 { return s.Loss }), width: 1.5}},
	}
}

// rateChart returns the chart of the learning rate, and whether the learning rate
// changes. The chart is drawn only if it does.
func rateChart(r *Report) (chart, bool) {
	rates := along(r, func(s *runs.StepReport) float64 { return s.LR })
	low, high := rates.bounds(math.Inf(1), math.Inf(-1))
	return chart{
		name: "learning-rate", title: "Learning rate", y1: 1.12 * high,
		alt:   fmt.Sprintf("between %s and %s", number(low), number(high)),
		marks: marksOf(r, atTop),
		lines: []line{{name: "each step", shade: "teal", points: rates, width: 1.5}},
	}, high > low
}
