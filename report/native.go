package report

import (
	"fmt"
	"slices"
	"strings"

	"headroom/report/words"
	"headroom/runs"
)

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
	cure: func(reason string) string {
		if notFinite(reason) {
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

// notFinite reports whether a run ended because a value such as the loss was NaN
// or infinite. reason is what the run recorded: the text of harness.NotFiniteError.
func notFinite(reason string) bool {
	return slices.ContainsFunc([]string{" is NaN", " is +Inf", " is -Inf"}, func(end string) bool { return strings.HasSuffix(reason, end) })
}

// stepGauges adds the metrics of the newest step.
func stepGauges(e *exposition, now *runs.Status) {
	e.put("headroom_steps_total", "counter", "Optimizer steps finished.", float64(now.Step))
	e.put("headroom_steps_planned", "gauge", "Optimizer steps of the whole run.", float64(now.Steps))
	e.put("headroom_samples_per_second", "gauge", "Throughput of the newest steps.", now.SamplesPerSecond)
	e.put("headroom_memory_peak_bytes", "gauge", "Peak memory allocated in the newest step.", float64(now.Peak))
	e.put("headroom_memory_capacity_bytes", "gauge", "Memory of the device.", float64(now.Capacity))
}
