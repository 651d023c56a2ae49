package report

import (
	"fmt"
	"slices"

	"headroom/memory"
	"headroom/recovery"
	"headroom/report/words"
)

// Thresholds for advice. The advice mentions a fact only if its value is beyond the
// threshold.
const (
	muchUnused  = 0.35 // share of what was available
	littleLeft  = 0.02 // share of what was available
	muchLost    = 0.05 // share of the time in attempts
	worthSaving = 30   // seconds
	worthATry   = 1.5  // a micro-batch this many times larger is worth a try
)

// advice returns what to change next, most urgent first. It never returns an empty
// list.
func advice(in Input, r *Report) []string {
	var all []string
	for _, rule := range []func(Input, *Report) string{
		adviseBroken, adviseHolder, adviseEnd, adviseMicro, adviseForeign, adviseSpike, adviseFragmentation, adviseLeak,
		adviseCheckpoints, adviseLost, adviseUnused, adviseTight, adviseLoss,
	} {
		if text := rule(in, r); text != "" {
			all = append(all, text)
		}
	}
	if len(all) == 0 {
		all = []string{nothingToChange(r)}
	}
	return all
}

func nothingToChange(r *Report) string {
	if r.Outcome.State == Empty || r.Outcome.State == Running {
		return "nothing yet"
	}
	if text := inPieces(r); text != "" {
		return "nothing has to change: " + text
	}
	if r.Failures.Total > 0 {
		return "nothing has to change: the run went on after every failure"
	}
	return r.body.nothingToChange
}

func adviseBroken(_ Input, r *Report) string {
	if r.Accounting.State != Broken {
		return ""
	}
	return "do not trust the result of this run: in some steps the effective batch was not the configured one. Keep the run's folder and report this as a defect"
}

// adviseHolder says what holds memory that grows, and what to write instead. If that ended the run, it also
// says how to go on, in place of adviseEnd.
func adviseHolder(in Input, r *Report) string {
	if r.Holder == nil {
		return ""
	}
	text := r.Holder.String()
	if r.leaked() {
		text += ". Then " + r.body.goOn(in, r)
	}
	return text
}

func adviseEnd(in Input, r *Report) string {
	from := r.body.goOn(in, r)
	switch r.Outcome.State {
	case Interrupted, CutOff:
		return from
	case Failed:
		if r.leaked() {
			return "" // adviseHolder says it
		}
		row, cure := lastHinted(r.Ledger), r.body.cure(in, r)
		switch {
		case cure != "":
			return cure
		case row.What == deviceLost:
			return row.Hint
		case row.Hint != "":
			return fmt.Sprintf("make more memory available or the training smaller, then %s. What helps: %s", from, row.Hint)
		}
		return fmt.Sprintf("fix what ended the run, then %s", from)
	}
	return ""
}

// lastHinted returns the newest row with a hint, or an empty row if there is none.
func lastHinted(rows []Row) Row {
	for _, row := range slices.Backward(rows) {
		if row.Hint != "" {
			return row
		}
	}
	return Row{}
}

// adviseMicro names the micro-batch that a run settled on after it had started with one
// that was too large.
func adviseMicro(in Input, r *Report) string {
	settled, lost, blamed := 0, 0.0, false
	for _, row := range r.Ledger {
		blamed = blamed && !row.Failed || row.Cause == memory.Batch
		if row.Cause == memory.Batch || row.last == recovery.Shrink && blamed {
			lost += row.Lost
		}
		if row.last == recovery.Shrink && blamed && row.micro > 0 {
			settled = row.micro
		}
	}
	if settled == 0 {
		return ""
	}
	text := r.body.settled(in, r, settled)
	if text != "" && lost >= 1 {
		text += fmt.Sprintf(", and save the %s spent finding it", words.Seconds(lost))
	}
	return text
}

// inPieces says that steps ran in pieces, which needs no change of the command. It does
// not recommend a smaller batch with accumulation, because a loss may need all rows of
// the batch in one place, which pieces keep and accumulation does not. It returns "" if
// the newest step did not run in pieces.
func inPieces(r *Report) string {
	if len(r.seen) == 0 || r.Failures.InPlace == 0 || r.Outcome.State != Finished {
		return ""
	}
	s := r.seen[len(r.seen)-1]
	if s.Pieces < 2 {
		return ""
	}
	return fmt.Sprintf("batches of %s rows ran in %s pieces and gave the same gradients as the whole batch", words.Count(s.Rows), words.Count(s.Pieces))
}

// unsimulated says how to turn off the other processes that the run's own configuration
// simulates.
const unsimulated = "turn the squeeze off with --set 'device.squeeze=[]'"

// simulatedHints replaces the hints of rows about other processes. It is used for a run
// that only simulates these processes.
func simulatedHints(rows []Row) {
	for i := range rows {
		if rows[i].Cause == memory.Foreign && rows[i].Hint != "" {
			rows[i].Hint = "the other process is simulated by device.squeeze: " + unsimulated
		}
	}
}

func adviseForeign(_ Input, r *Report) string {
	if counted(r, memory.Foreign) == 0 && r.Memory.ForeignFrom == 0 {
		return ""
	}
	when := ""
	if r.Memory.ForeignFrom > 0 {
		when = fmt.Sprintf(" (%s)", words.Span("step", r.Memory.ForeignFrom, r.Memory.ForeignTo))
	}
	if r.Simulated {
		return fmt.Sprintf("the other process, which took up to %v of %v%s, is simulated by device.squeeze: %s", r.Memory.Foreign, r.Memory.Capacity, when, unsimulated)
	}
	return fmt.Sprintf("other processes held up to %v of %v%s: let the job have the device to itself, or limit what they may take",
		r.Memory.Foreign, r.Memory.Capacity, when)
}

func adviseSpike(_ Input, r *Report) string {
	if counted(r, memory.Spike) == 0 {
		return ""
	}
	return fmt.Sprintf("%s needed far more memory than similar ones: limit the longest sample, or bucket samples by length", words.Plural(counted(r, memory.Spike), "step"))
}

func adviseFragmentation(in Input, r *Report) string {
	if counted(r, memory.Fragmentation) == 0 {
		return ""
	}
	hint := (*memory.Fragments)(nil).Hint(0, 0)
	for _, e := range in.Entries {
		if e.OOM != nil && e.OOM.Fragments != nil && e.Verdict != nil && e.Verdict.Cause == memory.Fragmentation {
			hint = e.OOM.Fragments.Hint(e.OOM.Requested, e.OOM.Stats.Free)
		}
	}
	if hint == "" {
		return "enough bytes were free, but in blocks that were too small, although PyTorch's segments are expandable"
	}
	return "enough bytes were free, but in blocks that were too small: with PyTorch, " + hint
}

func adviseLeak(_ Input, r *Report) string {
	if counted(r, memory.Leak) == 0 || r.Holder != nil {
		return ""
	}
	return "memory held between steps keeps growing: look for tensors kept across steps, such as losses collected as tensors instead of numbers"
}

func adviseCheckpoints(_ Input, r *Report) string {
	c := r.Checkpoints
	switch {
	case c.Failed > 0:
		return fmt.Sprintf("%s could not be written: see the ledger, and make room on the disk before the next run", words.Plural(c.Failed, "checkpoint"))
	case c.Damaged > 0:
		return fmt.Sprintf("%s found damaged and set aside: check the disk", words.Plural(c.Damaged, "checkpoint"))
	}
	return ""
}

func adviseLost(_ Input, r *Report) string {
	if r.Failures.Fatal || r.Failures.Share < muchLost || r.Failures.Lost < worthSaving {
		return ""
	}
	return fmt.Sprintf("%s of the time (%s) went into failures and searches: begin with a plan that fits", words.Percent(r.Failures.Share), words.Seconds(r.Failures.Lost))
}

// adviseUnused looks at the whole run. It recommends a larger micro-batch only if steps
// were cut into several micro-batches and no step came near the capacity.
func adviseUnused(_ Input, r *Report) string {
	if len(r.Sizes) == 0 || r.Failures.Total > 0 || !(r.Memory.Tightest > muchUnused) {
		return ""
	}
	top := r.Sizes[0]
	if top.Accumulation < 2 || float64(top.Micro)*worthATry > float64(r.Accounting.Effective) {
		return ""
	}
	return fmt.Sprintf("%s of the memory was never used: set batch.micro: auto to run more than %d samples at once", words.Percent(r.Memory.Tightest), top.Micro)
}

func adviseTight(_ Input, r *Report) string {
	if !(r.Memory.Tightest < littleLeft) {
		return ""
	}
	if m := r.Memory; r.Simulated && m.ForeignFrom > 0 && m.ForeignFrom <= m.TightestStep && m.TightestStep <= m.ForeignTo {
		return "" // memory was tight because of the simulation
	}
	return fmt.Sprintf("step %s left only %s of the available memory unused: a slightly larger memory.headroom gives the next run more room",
		words.Count(r.Memory.TightestStep), words.Percent(max(0, r.Memory.Tightest)))
}

func adviseLoss(_ Input, r *Report) string {
	if r.Loss.NotFinite == 0 {
		return ""
	}
	return fmt.Sprintf("the loss is NaN or infinite in %s: this is not a memory problem; check the learning rate and the data", words.Plural(r.Loss.NotFinite, "step"))
}

func counted(r *Report, cause memory.Cause) int {
	for _, c := range r.Failures.Causes {
		if c.Cause == cause {
			return c.N
		}
	}
	return 0
}
