package report

import (
	"fmt"

	"headroom/recovery"
	"headroom/report/words"
	"headroom/runs"
)

// Kept says whether the effective batch was the configured one in every step.
type Kept string

// The possible values of [Kept].
const (
	Held      Kept = "kept"
	Broken    Kept = "not kept"
	Unchecked Kept = "not checked" // there is nothing to check, or part of the records is missing
)

// Accounting is the result of checking, from the metrics, whether the effective batch was
// kept (invariant 1 in ARCHITECTURE.md). Every optimizer step must have used exactly the
// configured number of samples, and its micro-batches must add up to that number. No
// sample may have been skipped or used twice, and the samples of all steps must add up to
// steps × effective.
type Accounting struct {
	State     Kept
	Sum       string   // the result in words: "200 steps × 64 = 12,800 samples"
	Effective int      // configured samples per step; 0 if not known
	Steps     int      // recorded steps that were not rolled back
	Last      int      // number of the last of these steps
	Samples   int64    // samples in these steps
	Redone    int      // steps done again after an attempt began at an older checkpoint
	Problems  []string // what does not add up, oldest first, at most problemLimit
	More      int      // how many further problems there are
}

// problemLimit is the largest number of problems that an [Accounting] lists. It keeps the
// page readable if every step of a run is wrong.
const problemLimit = 12

// auditor checks the journal and the metrics, and collects the result.
type auditor struct {
	Accounting
	plan    recovery.Plan
	follow  bool // some step records First, so the positions of samples can be checked
	missing bool
}

// account checks the metrics and returns the steps that count. If a step number recurs,
// an attempt began from an older checkpoint. The earlier records of that step and of all
// steps after it were then rolled back, and only the steps that replaced them count.
func account(in Input) ([]runs.StepReport, Accounting) {
	a := auditor{Accounting: Accounting{State: Held, Effective: in.Effective}}
	a.plan, _ = firstPlan(in.Entries)
	if a.Effective == 0 {
		a.Effective = a.plan.Effective
	}
	a.plans(in.Entries)
	steps, rewinds := lastMade(in.Steps)
	a.Redone = len(in.Steps) - len(steps)
	if lives := starts(in.Entries); rewinds >= max(1, lives) {
		a.wrong("the step number went back %s, but the journal records only %s", words.Plural(rewinds, "time"), words.Plural(lives, "attempt"))
	}
	a.walk(steps)
	if n := len(in.Entries); n > 0 && !in.Running && a.Steps > 0 && in.Entries[n-1].Step > a.Last {
		a.missing = true
		a.note("%s not recorded, although the journal goes further", words.Span("step", a.Last+1, in.Entries[n-1].Step))
	}
	a.conclude()
	return steps, a.Accounting
}

// lastMade returns the steps that were not rolled back, and how many times the step
// number went back. If no step was rolled back, the result shares memory with all.
func lastMade(all []runs.StepReport) (steps []runs.StepReport, rewinds int) {
	for i := 1; i < len(all); i++ {
		if all[i].Step <= all[i-1].Step {
			rewinds++
		}
	}
	if rewinds == 0 {
		return all, 0
	}
	for _, s := range all {
		keep := len(steps)
		for keep > 0 && steps[keep-1].Step >= s.Step {
			keep--
		}
		steps = append(steps[:keep], s)
	}
	return steps, rewinds
}

func starts(entries []runs.Entry) int {
	n := 0
	for _, e := range entries {
		if e.Kind == runs.KindAttempt {
			n++
		}
	}
	return n
}

// plans checks that every plan of the run asked for the configured effective batch.
func (a *auditor) plans(entries []runs.Entry) {
	for _, e := range entries {
		if e.Kind == runs.KindSurvived {
			continue // this plan is only about the rows of one call
		}
		if e.Plan != nil && e.Plan.Effective != a.Effective {
			a.wrong("at step %d the plan asked for %d samples per step, but %d are configured", e.Step, e.Plan.Effective, a.Effective)
		}
		if d := e.Decision; d != nil && d.Plan.Effective != 0 && d.Plan.Effective != a.Effective {
			a.wrong("at step %d a decision asked for %d samples per step, but %d are configured", e.Step, d.Plan.Effective, a.Effective)
		}
	}
}

func (a *auditor) walk(steps []runs.StepReport) {
	for _, s := range steps {
		a.follow = a.follow || s.First != 0
	}
	for i, s := range steps {
		a.Steps++
		a.Last = s.Step
		a.Samples += int64(s.Samples)
		if a.Effective > 0 && s.Samples != a.Effective {
			a.wrong("step %d took %d samples, not %d", s.Step, s.Samples, a.Effective)
		}
		if sum := total(s.Splits); len(s.Splits) > 0 && !a.adds(sum, s.Samples) {
			a.wrong("step %d: the micro-batches add up to %d samples, but the step reports %d", s.Step, sum, s.Samples)
		}
		previous := runs.StepReport{First: s.First}
		if i > 0 {
			previous = steps[i-1]
		}
		a.sequence(previous, s)
	}
}

// sequence checks that s begins where the previous step ended.
func (a *auditor) sequence(previous, s runs.StepReport) {
	if s.Step != previous.Step+1 {
		a.missing = true
		a.note("%s not recorded", words.Span("step", previous.Step+1, s.Step-1))
		return
	}
	want := previous.First + int64(previous.Samples)
	if a.follow && s.First != want {
		a.wrong("step %d began at sample %d, but the previous step ended at %d", s.Step, s.First, want)
	}
}

// adds reports whether micro-batches that contain sum samples in total make up a step of
// the given number of samples. With several ranks, a worker records only its own
// micro-batches.
func (a *auditor) adds(sum, samples int) bool {
	if a.plan.World <= 1 {
		return sum == samples
	}
	return sum == samples || sum == a.plan.Share(0) || sum == a.plan.Share(a.plan.World-1)
}

func (a *auditor) conclude() {
	expected := int64(a.Steps) * int64(a.Effective)
	switch {
	case a.Steps == 0:
		a.State, a.Sum = Unchecked, "no step is recorded"
		return
	case a.Effective == 0:
		a.Sum = "the configured effective batch is not known"
		if a.State == Held {
			a.State = Unchecked
		}
		return
	case a.Samples != expected:
		a.State = Broken
	case a.State == Held && a.missing:
		a.State = Unchecked
	}
	a.Sum = fmt.Sprintf("%s × %s = %s samples", words.Plural(a.Steps, "step"), words.Count(a.Effective), words.Count(expected))
	if a.Samples != expected {
		a.Sum += fmt.Sprintf(", but %s are recorded", words.Count(a.Samples))
	}
}

func (a *auditor) wrong(format string, args ...any) {
	a.State = Broken
	a.note(format, args...)
}

func (a *auditor) note(format string, args ...any) {
	if len(a.Problems) == problemLimit {
		a.More++
		return
	}
	a.Problems = append(a.Problems, fmt.Sprintf(format, args...))
}

func total(splits []int) int {
	sum := 0
	for _, n := range splits {
		sum += n
	}
	return sum
}
