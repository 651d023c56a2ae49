package report

import (
	"headroom/report/chart"
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
	cure    func(reason string) string                  // advice about an end for the given reason; "" if there is none
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
