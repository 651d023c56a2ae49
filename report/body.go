package report

import (
	"fmt"

	"headroom/report/chart"
	"headroom/report/words"
	"headroom/runs"
)

// body is what a report has to know about what made the steps of a run: headroom's own
// trainer, or a command. [bodyOf] is the only place that asks which of the two it was. All
// that differs between their reports is in the fields of [native] and [command].
type body struct {
	metrics func(in *Input, dir string) error // reads the metrics of the run in dir into the input

	// journalSteps is true if the steps in the journal are optimizer steps. Otherwise they
	// are steps of checkpoints, and a step of the process is known only if a worker saw it.
	journalSteps bool
	// atOnce is true if everything is recorded when it happens, so that the time until the
	// next entry is what it cost. Otherwise a failure may be recorded only after its process
	// has ended, and its cost is known only if the entry says it.
	atOnce bool
	// resumes is true if every attempt starts from the newest whole checkpoint. Otherwise an
	// attempt may start over although there is a checkpoint.
	resumes bool
	// leastBatch is the smallest effective batch that a plan can mean. A command whose batch
	// is not known has a plan of one sample.
	leastBatch int

	steps    func(in Input, r *Report) int         // optimizer steps that were not rolled back
	progress func(o Outcome, r *Report) string     // how far the run has got, in words; may be empty
	cards    func(r *Report) []Card                // without the card of the device
	charts   func(r *Report) []chart.Chart         // of the page's pictures
	columns  []Column                              // of the table of attempts: where each began, and how far it got
	gauges   func(e *exposition, now *runs.Status) // adds the metrics that only this body has

	noFailure       string // answer to how many times memory ran out, if no failure is recorded
	nothingToChange string // advice if nothing has to change and nothing failed
	checked         string // what is said of the effective batch at the end of the page; may be empty

	goOn    func(in Input, r *Report) string            // advice: how to continue the run
	cure    func(in Input, r *Report) string            // advice about a run that failed, from the facts in its last entry; "" if there are none
	settled func(in Input, r *Report, micro int) string // advice: which micro-batch would have fitted; "" if none is known to
}

// bodyOf returns the body of the run whose records are in the input.
func bodyOf(in Input) *body {
	if in.Command == "" {
		return &native
	}
	return &command
}

// Column is a column of the table of attempts.
type Column struct {
	Head  string // heading, as in "From step"
	Label string // the same in front of each value, where the table is narrow

	of func(Attempt) string
}

// Of returns the column's value for an attempt, as text.
func (c Column) Of(a Attempt) string { return c.of(a) }

// Columns returns those columns of the table of attempts that say where an attempt began and
// how far it got.
func (r *Report) Columns() []Column { return r.body.columns }

// Checked says how the effective batch was checked, or is "" if nothing is to be said.
func (r *Report) Checked() string { return r.body.checked }

// native is the body of a run that headroom trained itself.
var native = body{
	metrics: func(in *Input, dir string) (err error) {
		in.Steps, err = runs.ReadMetrics(dir)
		return err
	},
	journalSteps: true,
	atOnce:       true,
	resumes:      true,
	leastBatch:   1,
	steps:        lastStep,
	progress:     stepsOfPlanned,
	cards: func(r *Report) []Card {
		return []Card{r.batchCard(), r.failureCard(), r.memoryCard(), r.speedCard(), r.lossCard(), r.checkpointCard()}
	},
	charts: stepCharts,
	columns: []Column{
		{"From step", "from step", func(a Attempt) string { return words.Count(a.From) }},
		{"To step", "to step", func(a Attempt) string { return words.Count(a.To) }},
	},
	gauges:          stepGauges,
	noFailure:       "never",
	nothingToChange: "nothing: the settings fit this job and this device",
	checked:         "The effective batch is checked step by step, not taken on trust.",
	goOn: func(_ Input, r *Report) string {
		if r.Checkpoints.Written == 0 {
			return "start the same command again: it begins from step 0, because no checkpoint was written"
		}
		return fmt.Sprintf("start the same command again: it continues from step %s", words.Count(r.Checkpoints.Newest))
	},
	cure: func(_ Input, r *Report) string {
		if r.Outcome.entry.NotFinite != "" {
			return "lower optimizer.lr or set optimizer.clip, then start the same command again with --fresh: it begins from step 0"
		}
		return ""
	},
	settled: func(_ Input, _ *Report, micro int) string {
		return fmt.Sprintf("micro-batch %d would have fitted from the start: set batch.micro: %d, or auto", micro, micro)
	},
}

// lastStep returns the newest step that the metrics or the journal know.
func lastStep(in Input, r *Report) int {
	last := r.Accounting.Last
	if n := len(in.Entries); n > 0 {
		last = max(last, in.Entries[n-1].Step)
	}
	return last
}

func stepsOfPlanned(o Outcome, _ *Report) string {
	if o.Planned > 0 {
		return fmt.Sprintf("%s of %s steps", words.Count(o.Steps), words.Count(o.Planned))
	}
	return words.Plural(o.Steps, "step")
}

// stepGauges adds the metrics of the newest step.
func stepGauges(e *exposition, now *runs.Status) {
	e.put("headroom_steps_total", "counter", "Optimizer steps finished.", float64(now.Step))
	e.put("headroom_steps_planned", "gauge", "Optimizer steps of the whole run.", float64(now.Steps))
	e.put("headroom_samples_per_second", "gauge", "Throughput of the newest steps.", now.SamplesPerSecond)
	e.put("headroom_memory_peak_bytes", "gauge", "Peak memory allocated in the newest step.", float64(now.Peak))
	e.put("headroom_memory_capacity_bytes", "gauge", "Memory of the device.", float64(now.Capacity))
}
