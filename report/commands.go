package report

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"headroom/memory"
	"headroom/report/chart"
	"headroom/report/words"
	"headroom/runs"
)

// command is the body of a run of a command that headroom wrapped. What is known of its
// steps is what a worker saw.
var command = body{
	metrics: func(in *Input, dir string) (err error) {
		in.Seen, err = runs.ReadProcessSteps(dir)
		return err
	},
	leastBatch: 2,
	steps:      stepsSeen,
	progress:   commandsProgress,
	cards:      commandsCards,
	charts:     commandCharts,
	columns: []Column{
		{"From checkpoint", "from checkpoint", func(a Attempt) string { return positive(a.From) }},
		{"Steps made", "steps made", func(a Attempt) string { return positive(a.Made) }},
	},
	gauges:          func(*exposition, *runs.Status) {},
	noFailure:       "none seen", // it may have caught a failure itself, or hidden it, as a pipeline does
	nothingToChange: "nothing: no out-of-memory failure was seen",
	goOn: func(in Input, r *Report) string {
		if in.Resumable {
			return fmt.Sprintf("run headroom resume %s, which continues from the newest checkpoint, or from the beginning if there is none", r.Name)
		}
		return "start the command again"
	},
	cure: func(in Input, r *Report) string {
		conditions := strings.Join(r.Outcome.entry.Unproven, ", and ")
		switch {
		case conditions == "":
			return ""
		case in.Resumable:
			return fmt.Sprintf("run headroom resume --trust %s if %s", r.Name, conditions)
		}
		return "run the command again with --trust if " + conditions
	},
	settled: settledForCommand,
}

// positive returns n as text, or "–" if it is 0, which means that it is not known.
func positive(n int) string {
	if n == 0 {
		return "–"
	}
	return words.Count(n)
}

// stepsSeen returns the steps that a worker saw, those of all attempts.
func stepsSeen(_ Input, r *Report) (steps int) {
	for _, made := range stepsMade(r.seen) {
		steps += made
	}
	return steps
}

// commandsCards leaves out the cards about which nothing is known.
func commandsCards(r *Report) []Card {
	cards := []Card{r.holderCard(), r.commandsBatchCard(), r.failureCard(), r.stepsCard(), r.memoryCard(), r.speedCard(), r.lossCard(), r.commandsCheckpointCard()}
	return slices.DeleteFunc(cards, func(c Card) bool { return c.unknown })
}

// holder returns what the newest process that looked has found to hold memory that grows; nil if none has.
func holder(entries []runs.Entry) *memory.Holder {
	for _, e := range slices.Backward(entries) {
		if e.Holder != nil {
			return e.Holder
		}
	}
	return nil
}

// holderCard says what holds memory that grows, and what to write instead.
func (r *Report) holderCard() Card {
	c := Card{Question: "What holds memory", unknown: r.Holder == nil, Tone: Warn}
	if h := r.Holder; h != nil {
		c.Answer, c.Note = clipped(cmp.Or(h.Name, "not found"), textLimit), clipped(h.Facts(), textLimit)
		if h.Cure != "" {
			c.Lines = []string{clipped(h.Cure, textLimit)}
		}
		if r.leaked() {
			c.Tone = Bad
		}
	}
	return c
}

// leaked reports whether the run failed for want of memory that a known holder kept.
func (r *Report) leaked() bool {
	return r.Holder != nil && r.Outcome.State == Failed && counted(r, memory.Leak) > 0
}

// settledForCommand names the arguments with which a command would have fitted from the
// start. It returns "" if the command has not finished, because then no micro-batch has been
// seen to fit.
func settledForCommand(in Input, r *Report, micro int) string {
	if r.Outcome.State != Finished {
		return ""
	}
	text := fmt.Sprintf("micro-batch %d would have fitted from the start: pass it to the command", micro)
	if p := planOf(in.Entries, micro); p.Accumulation() > 1 {
		text += fmt.Sprintf(", with accumulation %d to keep the effective batch", p.Accumulation())
	}
	return text
}

// commandsBatchCard is batchCard for a command, whose steps headroom does not run itself.
func (r *Report) commandsBatchCard() Card {
	c := Card{Question: "Effective batch", Answer: "as the command sets it", Tone: Info, Note: "no plan was changed"}
	var notes []string
	if r.Failures.InPlace > 0 {
		notes = append(notes, "steps that ran out of memory still gave the result of the whole batch")
	}
	// A new plan has been used only if a step was made in an attempt that began after the
	// change.
	worked := r.worked()
	smallerBefore := func(attempt int) bool {
		return slices.ContainsFunc(r.Ledger, func(row Row) bool { return row.Cuts() != "" && row.Attempt < attempt })
	}
	if smallerBefore(worked) {
		notes = append(notes, "accumulation made up for a smaller micro-batch")
	}
	switch {
	case len(notes) > 0:
		c.Answer, c.Tone, c.Note = "kept", Good, strings.Join(notes, "; ")
	case worked == 0 && r.Failures.Fatal && slices.ContainsFunc(r.Ledger, func(row Row) bool { return row.Step == 1 }):
		c.Answer, c.Note = "no step was completed", "memory ran out in the first one"
	case smallerBefore(len(r.Attempts)):
		c.Answer, c.Note = "no step was seen", "the micro-batch was made smaller, and no step or checkpoint was seen after that"
	}
	return c
}

func (r *Report) commandsCheckpointCard() Card {
	k := r.Checkpoints
	c := Card{Question: "Newest checkpoint", Answer: "step unknown", Note: k.Path, Tone: Info, unknown: k.Written == 0 && k.Newest == 0}
	if k.Newest > 0 {
		c.Answer = "step " + words.Count(k.Newest)
	}
	return c
}

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
	lost := map[int]float64{} // in the newest step of each attempt
	for _, s := range seen {
		m.Host, lost[s.Attempt] = max(m.Host, s.Host), s.Lost
		m.Capacity, m.Peak, m.PeakReserved = max(m.Capacity, s.Memory.Capacity), max(m.Peak, s.Memory.Peak), max(m.PeakReserved, s.Memory.Reserved)
	}
	for _, seconds := range lost {
		m.HostLost += seconds
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

// commandsProgress says how far a wrapped command has got. If several attempts made steps, it counts only those of the newest, because
// steps after the checkpoint that an attempt began from are made again, and the unit of a
// checkpoint's number is the command's own. If no worker saw a step, it gives the step of the
// newest checkpoint instead, or returns "" if that is not known either.
func commandsProgress(o Outcome, r *Report) string {
	made := stepsMade(r.seen)
	switch {
	case len(made) > 1:
		return r.newestProgress(made)
	case len(made) == 1:
		return words.Plural(o.Steps, "step")
	case r.Checkpoints.Newest > 0:
		return "newest checkpoint: step " + words.Count(r.Checkpoints.Newest)
	}
	return ""
}

// newestProgress returns the part of commandsProgress that is about the newest attempt with steps.
func (r *Report) newestProgress(made map[int]int) string {
	newest := slices.Max(slices.Collect(maps.Keys(made)))
	text, last := words.Plural(made[newest], "step"), newest
	for _, a := range r.Attempts {
		if a.Number == newest && a.From > 0 {
			text += " after checkpoint " + words.Count(a.From)
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
	c.Answer = words.Plural(r.Outcome.Steps, "optimizer step")
	if processes := len(stepsMade(r.seen)); processes > 1 {
		c.Note = fmt.Sprintf("in %d processes; repeated steps are counted each time", processes)
	}
	if mean := stepTime(r.seen); !math.IsNaN(mean) {
		c.Answer += fmt.Sprintf(", %s s each on average", words.Number(mean))
	}
	return c
}

// commandCharts returns the charts of a wrapped command. There are none if fewer than
// two steps were seen. Without a GPU, there is no chart of memory.
func commandCharts(r *Report) []chart.Chart {
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
	of := func(value func(runs.ProcessStep) float64) chart.Series {
		return chart.Sample(len(steps), func(i int) (x, y float64) { return when(steps[i].Time), value(steps[i]) })
	}
	in, amounts := amountsOf(r.Memory.Capacity)
	held := func(what func(memory.Stats) memory.Bytes) chart.Series {
		return of(func(s runs.ProcessStep) float64 { return in(what(s.Memory)) })
	}
	phase := func(at func(runs.ProcessStep) memory.Bytes) chart.Series {
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
	_, fastest := speed.Bounds(0, 0)
	_, most := pieces.Bounds(0, 1)
	charts := []chart.Chart{{
		Name: "memory", Title: "Memory against capacity", Unit: amounts, Y1: 1.08 * in(max(1, r.Memory.Capacity)),
		Alt: fmt.Sprintf("up to %v of %v", r.Memory.Peak, known(r.Memory.Capacity)),
		Lines: []chart.Line{
			{Name: "reserved", Shade: "teal", Points: held(func(s memory.Stats) memory.Bytes { return s.Reserved }), Width: 5},
			{Name: "between steps", Shade: "blue", Points: allocated, Width: 2},
			{Name: "after forward", Shade: "orange", Points: phase(func(s runs.ProcessStep) memory.Bytes { return s.Forward }), Width: 1.5},
			{Name: "after backward", Shade: "magenta", Points: phase(func(s runs.ProcessStep) memory.Bytes { return s.Backward }), Width: 1.5},
			{Name: "highest so far", Shade: "violet", Points: held(func(s memory.Stats) memory.Bytes { return s.Peak }), Width: 1.5},
			{Name: "capacity", Shade: "ink", Points: held(func(s memory.Stats) memory.Bytes { return s.Capacity }), Width: 1.5, Dashed: true},
		},
		Areas: []chart.Area{{Shade: "bluefill", Points: allocated}},
	}, {
		Name: "throughput", Title: "Throughput", Unit: "optimizer steps per second", Y1: 1.12 * fastest,
		Alt:   "optimizer steps per second over time",
		Lines: []chart.Line{{Name: "newest steps", Shade: "blue", Points: speed, Width: 1.5}},
	}, {
		Name: "pieces", Title: "Pieces of a batch", Unit: "pieces", Whole: true, Y1: 1.12 * most,
		Alt:   fmt.Sprintf("up to %.0f", most),
		Lines: []chart.Line{{Name: "pieces per batch", Shade: "blue", Points: pieces.Stepped(), Width: 2}},
	}}
	if r.Memory.Host > 0 {
		host := of(func(s runs.ProcessStep) float64 { return in(s.Host) })
		charts[0].Lines = append(charts[0].Lines, chart.Line{Name: "on the host", Shade: "brown", Points: host, Width: 2})
		charts[0].Alt += fmt.Sprintf(", and up to %v of the host's memory", r.Memory.Host)
	}
	charts[1] = charts[1].Smoothed("reading", len(steps), func(i int) (x, y float64) { return when(steps[i].Time), 1 / steps[i].Seconds })
	if r.Memory.Peak == 0 {
		charts = charts[1:]
	}
	if most <= 1 {
		charts = charts[:len(charts)-1]
	}
	if c, ok := heldChart(r, func(t time.Time) float64 { return min(max(0, when(t)), when(steps[len(steps)-1].Time)) }); ok {
		charts = append(charts, c)
	}
	for i := range charts {
		c := &charts[i]
		c.Across, c.X0, c.X1 = name+" since the first step", 0, max(when(steps[len(steps)-1].Time), 1e-3)
		for _, row := range r.Ledger {
			if row.Failed { // the time of the failure may lie off the axis, as in the first step or in the last one tried
				c.Marks = append(c.Marks, markOf(row, "", min(max(c.X0, when(row.Time)), c.X1), math.NaN()))
			}
		}
	}
	return charts
}
