package report

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"headroom/memory"
	"headroom/report/chart"
	"headroom/report/words"
	"headroom/runs"
)

// stepCharts returns the charts of a run whose optimizer steps are recorded one by one. The
// first four are always there, and say so if they have nothing to show.
func stepCharts(r *Report) []chart.Chart {
	charts := []chart.Chart{memoryChart(r), microChart(r), throughputChart(r), lossChart(r)}
	if c, varies := rateChart(r); varies {
		charts = append(charts, c)
	}
	for i := range charts {
		charts[i].Across = chart.Steps
		charts[i].X0, charts[i].X1 = stepRange(r)
	}
	return charts
}

// stepRange returns the ends of the horizontal axis, which covers all steps that were
// tried.
func stepRange(r *Report) (from, to float64) {
	from, to = 1, 1
	if n := len(r.steps); n > 0 {
		from, to = float64(r.steps[0].Step), float64(r.steps[n-1].Step)
	}
	for _, row := range r.Ledger {
		if row.Failed {
			from, to = min(from, float64(row.Step)), max(to, float64(row.Step))
		}
	}
	if from == to {
		return from - 0.5, to + 0.5
	}
	return from, to
}

// along returns the series of one value over all steps, thinned out.
func along(r *Report, value func(*runs.StepReport) float64) chart.Series {
	return chart.Sample(len(r.steps), func(i int) (x, y float64) {
		return float64(r.steps[i].Step), value(&r.steps[i])
	})
}

// marksOf returns the marks of a run's failures. at returns the place of a mark on the
// vertical axis.
func marksOf(r *Report, at func(Row) float64) []chart.Mark {
	var all []chart.Mark
	for _, row := range r.Ledger {
		if !row.Failed {
			continue
		}
		all = append(all, markOf(row, fmt.Sprintf("step %s: ", words.Count(row.Step)), float64(row.Step), at(row)))
	}
	slices.SortStableFunc(all, func(a, b chart.Mark) int { return cmp.Compare(a.X, b.X) })
	return all
}

// markTextLimit is how many bytes the text about one failure may have.
const markTextLimit = 120

// markOf returns the mark of one failure, at the place x, y on the chart. where describes
// that place in words.
func markOf(row Row, where string, x, y float64) chart.Mark {
	cause := cmp.Or(row.Cause, memory.Unknown)
	text := strings.TrimSuffix(fmt.Sprintf("%d. %s%s: %s", row.Number, where, cause, row.Why), ": ")
	if row.Remedy != "" {
		text += " → " + row.Remedy
	}
	return chart.Mark{Number: row.Number, X: x, Y: y, Cause: cause, Text: clipped(text, markTextLimit)}
}

func atTop(Row) float64 { return math.NaN() }

// overshoot is the largest value on the vertical axis of the memory picture, as a
// multiple of the capacity. Failures that needed more are marked at the top of the
// picture.
const overshoot = 1.3

func memoryChart(r *Report) chart.Chart {
	in, name := amountsOf(r.Memory.Capacity)
	of := func(amount func(memory.Stats) memory.Bytes) chart.Series {
		return along(r, func(s *runs.StepReport) float64 { return in(amount(s.Memory)) }).Stepped()
	}
	allocated := of(func(s memory.Stats) memory.Bytes { return s.Peak })
	capacity := of(func(s memory.Stats) memory.Bytes { return s.Capacity })
	if len(capacity) == 0 && r.Memory.Capacity > 0 {
		x0, x1 := stepRange(r)
		capacity = chart.Series{{{X: x0, Y: in(r.Memory.Capacity)}, {X: x1, Y: in(r.Memory.Capacity)}}}
	}
	c := chart.Chart{
		Name: "memory", Title: "Memory against capacity", Unit: name,
		Alt:   memoryAlt(r),
		Marks: marksOf(r, func(row Row) float64 { return in(row.Needed) }),
		Lines: []chart.Line{
			// The first line is wide, so that it can be seen where the second covers it.
			{Name: "peak reserved", Shade: "teal", Points: of(func(s memory.Stats) memory.Bytes { return s.PeakReserved }), Width: 5},
			{Name: "peak allocated", Shade: "blue", Points: allocated, Width: 2},
		},
		Areas: []chart.Area{{Shade: "bluefill", Points: allocated, Edge: 0}},
	}
	if slices.ContainsFunc(r.steps, func(s runs.StepReport) bool { return s.Memory.Foreign > 0 }) {
		room := of(memory.Stats.Available)
		c.Areas = append(c.Areas, chart.Area{Name: "held by other processes", Shade: "violetfill", Points: room, Edge: in(r.Memory.Capacity)})
		c.Lines = append(c.Lines, chart.Line{Name: "available to this run", Shade: "violet", Points: room, Width: 1.5})
	}
	c.Lines = append(c.Lines, chart.Line{Name: "capacity", Shade: "ink", Points: capacity, Width: 1.5, Dashed: true})
	top := in(r.Memory.Capacity)
	for _, m := range c.Marks {
		if m.Y > c.Y1 {
			c.Y1 = m.Y
		}
	}
	_, c.Y1 = allocated.Bounds(0, c.Y1)
	if top > 0 {
		c.Y1 = max(1.08*top, min(1.05*c.Y1, overshoot*top))
	}
	return c
}

func memoryAlt(r *Report) string {
	m := r.Memory
	if m.Peak == 0 {
		return fmt.Sprintf("%s; the capacity was %v", r.Failures.Summary, m.Capacity)
	}
	return fmt.Sprintf("the peak was %v of %v at step %s; %s", m.Peak, m.Capacity, words.Count(m.PeakStep), r.Failures.Summary)
}

// amountsOf chooses the unit for amounts of memory that are shown together with a
// capacity, and returns its name. The function in converts an amount to that unit, or to
// NaN if the amount is not known.
func amountsOf(capacity memory.Bytes) (in func(memory.Bytes) float64, name string) {
	unit, name := memory.KiB, "KiB"
	switch {
	case capacity >= 2*memory.GiB:
		unit, name = memory.GiB, "GiB"
	case capacity >= 2*memory.MiB:
		unit, name = memory.MiB, "MiB"
	}
	return func(b memory.Bytes) float64 {
		if b <= 0 {
			return math.NaN()
		}
		return float64(b) / float64(unit)
	}, name
}

func microChart(r *Report) chart.Chart {
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
	_, high := micro.Bounds(0, 1)
	_, high = accumulation.Bounds(0, high)
	return chart.Chart{
		Name: "micro-batch", Title: "Micro-batch and accumulation", Whole: true, Y1: 1.12 * high,
		Alt:   fmt.Sprintf("for each step, its largest micro-batch and the number of its micro-batches; the run cut its steps in %s", words.Plural(len(r.Sizes), "way")),
		Marks: marksOf(r, atTop),
		Lines: []chart.Line{
			{Name: "samples at once", Shade: "blue", Points: micro.Stepped(), Width: 2},
			{Name: "micro-batches per step", Shade: "teal", Points: accumulation.Stepped(), Width: 2, Dashed: true},
		},
	}
}

func throughputChart(r *Report) chart.Chart {
	speed := along(r, rate)
	_, high := speed.Bounds(0, 0)
	c := chart.Chart{
		Name: "throughput", Title: "Throughput", Unit: "samples per second", Y1: 1.12 * high,
		Alt:   fmt.Sprintf("the median is %s samples per second", words.Number(r.Speed.Median)),
		Marks: marksOf(r, atTop),
		Lines: []chart.Line{{Name: "each step", Shade: "blue", Points: speed, Width: 1.5}},
	}
	return c.Smoothed("step", len(r.steps), func(i int) (x, y float64) { return float64(r.steps[i].Step), rate(&r.steps[i]) })
}

func lossChart(r *Report) chart.Chart {
	return chart.Chart{
		Name: "loss", Title: "Loss",
		Alt:   fmt.Sprintf("from %s to %s, lowest %s at step %s", words.Number(r.Loss.First), words.Number(r.Loss.Last), words.Number(r.Loss.Lowest), words.Count(r.Loss.LowestStep)),
		Marks: marksOf(r, atTop),
		Lines: []chart.Line{{Name: "each step", Shade: "blue", Points: along(r, func(s *runs.StepReport) float64 { return s.Loss }), Width: 1.5}},
	}
}

// rateChart returns the chart of the learning rate, and whether the learning rate
// changes. The chart is drawn only if it does.
func rateChart(r *Report) (chart.Chart, bool) {
	rates := along(r, func(s *runs.StepReport) float64 { return s.LR })
	low, high := rates.Bounds(math.Inf(1), math.Inf(-1))
	return chart.Chart{
		Name: "learning-rate", Title: "Learning rate", Y1: 1.12 * high,
		Alt:   fmt.Sprintf("between %s and %s", words.Number(low), words.Number(high)),
		Marks: marksOf(r, atTop),
		Lines: []chart.Line{{Name: "each step", Shade: "teal", Points: rates, Width: 1.5}},
	}, high > low
}
