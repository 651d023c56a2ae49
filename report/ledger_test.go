package report

import (
	"fmt"
	"strings"
	"testing"

	"headroom/memory"
	"headroom/recovery"
	"headroom/runs"
	"headroom/search"
)

// told returns a ledger as text, one line per row.
func told(rows []Row) string {
	var b strings.Builder
	for _, row := range rows {
		fmt.Fprintf(&b, "%d step %d %s: %s", row.Number, row.Step, row.What, row.Remedy)
		if row.Probes != "" {
			fmt.Fprintf(&b, " [%s]", row.Probes)
		}
		if row.Cuts() != "" {
			fmt.Fprintf(&b, " (%s)", row.Cuts())
		}
		fmt.Fprintf(&b, " %.1fs\n", row.Lost)
	}
	return b.String()
}

func expectTold(t *testing.T, rows []Row, want string) {
	t.Helper()
	if got := told(rows); got != strings.TrimLeft(want, "\n") {
		t.Errorf("got\n%swant%s", got, want)
	}
}

func TestLedgerOfANight(t *testing.T) {
	expectTold(t, New(night().Input).Ledger, `
1 step 1 out of memory: batch: empty cache 0.7s
2 step 1 out of memory: batch: search, then shrink [63! 31! 15 28 27] (64 × 1 → 22 × 3) 6.6s
3 step 81 out of memory: foreign: empty cache 0.6s
4 step 81 out of memory: foreign: shrink (22 × 3 → 13 × 5) 0.6s
5 step 120 memory available again: grow (13 × 5 → 22 × 3) 0.0s
`)
}

// TestLedgerSaysTheVerdictOnce checks that a row with the verdict does not repeat it in the
// decision's reason. Earlier versions recorded no shorter reason.
func TestLedgerSaysTheVerdictOnce(t *testing.T) {
	const brief = "empty the cache and run step 81 again with micro-batch 22"
	d := night()
	row := New(d.Input).Ledger[2]
	if row.Why == "" || row.Reason != brief {
		t.Errorf("why %q, reason %q", row.Why, row.Reason)
	}
	for _, e := range d.Entries {
		if e.Decision != nil {
			e.Decision.Brief = ""
		}
	}
	if old := New(d.Input).Ledger[2]; old.Why != row.Why || old.Reason != brief+": "+row.Why {
		t.Errorf("of an earlier version: why %q, reason %q", old.Why, old.Reason)
	}
}

// TestLedgerOfAFirstSearch checks the row of a run's first search, which no failure
// caused. The resulting plan has an entry of its own, of kind KindPlan.
func TestLedgerOfAFirstSearch(t *testing.T) {
	d := newDiary("auto", 10)
	d.attempt = 1
	d.entry(runs.Entry{Kind: runs.KindProbe, Probe: &search.Probe{N: 64}, Seconds: 2})
	d.entry(runs.Entry{Kind: runs.KindProbe, Probe: &search.Probe{N: 22, Fits: true}, Seconds: 2})
	d.entry(runs.Entry{Kind: runs.KindSearch, Search: &search.Result{Fits: 22}, Seconds: 5, Text: "22 is the largest that fits"})
	plan := d.plan.WithMicro(22)
	d.entry(runs.Entry{Kind: runs.KindPlan, Plan: &plan, Decision: &recovery.Decision{Plan: plan, Remedy: recovery.Continue, Reason: "22 leaves room"}})
	d.plan = plan
	d.walk(10, 0)
	r := New(d.Input)
	expectTold(t, r.Ledger, "\n1 step 0 no plan yet: search [64! 22] (22 × 3) 5.0s\n")
	if r.Ledger[0].Reason != "22 leaves room" || r.Failures.Total != 0 {
		t.Errorf("reason %q, failures %d", r.Ledger[0].Reason, r.Failures.Total)
	}
}

// TestLedgerOfSurvivedInPlace checks that a failure that a worker survived inside a
// process has a row of its own, and that the pieces are not mistaken for an effective
// batch.
func TestLedgerOfSurvivedInPlace(t *testing.T) {
	d := newDiary("inside", 10)
	d.Command = "python train.py"
	d.begin()
	v := &memory.Verdict{Cause: memory.Batch, Why: "4 GiB asked for at micro-batch 40 in forward, 700 MiB free"}
	how := runs.InPlace{Way: runs.WayPieces, Rows: 40, Pieces: 2}
	d.entry(runs.Entry{Kind: runs.KindSurvived, Verdict: v, InPlace: &how, Seconds: 0.5, InStep: 2, OOM: &memory.OutOfMemoryError{Micro: 40}})
	d.entry(runs.Entry{Kind: runs.KindRefused, Text: "left to the command"})
	d.entry(runs.Entry{Kind: runs.KindWorker, Text: "attached"})
	d.walk(10, 0)
	r := New(d.Input)
	expectTold(t, r.Ledger, `
1 step 2 out of memory: batch: survived in place 0.5s
2 step 0 not recovered in place:  0.0s
`)
	if r.Failures.Total != 1 || r.Failures.Open || r.Accounting.State != Held || r.Ledger[0].Reason != "40 rows in 2 pieces" {
		t.Errorf("%+v, %+v, %+v", r.Failures, r.Accounting, r.Ledger[0])
	}
}

func TestLedgerOfGivingUp(t *testing.T) {
	d := newDiary("too large", 10)
	d.begin()
	v := d.oom(0, memory.Model, "micro-batch 1, the smallest allowed, needs 25 GiB")
	d.decide(recovery.Wait, 64, v, "wait for other processes to release memory")
	d.entry(runs.Entry{Kind: runs.KindRemedy, Text: "waited 60 s", Seconds: 60})
	v = d.oom(0, memory.Model, "micro-batch 1, the smallest allowed, needs 25 GiB")
	stop := recovery.Decision{Remedy: recovery.Stop, Plan: d.plan, Verdict: v, Reason: "nothing smaller is left to try", Hint: "a smaller model"}
	d.entry(runs.Entry{Kind: runs.KindFailed, Decision: &stop, Text: "gave up in step 1"})
	r := New(d.Input)
	expectTold(t, r.Ledger, `
1 step 1 out of memory: model: wait 60.6s
2 step 1 out of memory: model: stop 0.6s
`)
	if r.Outcome.State != Failed || r.Outcome.Reason != stop.Reason || !r.Failures.Fatal || r.Ledger[1].Hint != stop.Hint {
		t.Errorf("outcome %+v, failures %+v", r.Outcome, r.Failures)
	}
	if !strings.Contains(r.Advice[0], "a smaller model") {
		t.Errorf("advice %q", r.Advice)
	}
}

// TestOnlyTheLastAttemptEndsARun checks the report of a run that gave up once because of
// memory, and later failed for another reason.
func TestOnlyTheLastAttemptEndsARun(t *testing.T) {
	d := newDiary("twice", 10)
	d.begin()
	v := d.oom(0, memory.Model, "too large")
	d.entry(runs.Entry{Kind: runs.KindFailed, Decision: &recovery.Decision{Remedy: recovery.Stop, Plan: d.plan, Verdict: v}})
	if r := New(d.Input); !r.Failures.Fatal {
		t.Errorf("memory ended the run, got %+v", r.Failures)
	}
	d.begin()
	d.entry(runs.Entry{Kind: runs.KindFailed, Text: "the data set is gone"})
	if r := New(d.Input); r.Failures.Fatal || r.Outcome.Reason != "the data set is gone" {
		t.Errorf("memory did not end the run, got %+v, %q", r.Failures, r.Outcome.Reason)
	}
}

func TestLedgerOfOtherTroubles(t *testing.T) {
	d := newDiary("troubles", 100)
	d.plan.Micro = 16
	d.begin()
	d.walk(20, 0)
	d.entry(runs.Entry{Kind: runs.KindCheckpointFailed, Text: "no space left"})
	d.entry(runs.Entry{Kind: runs.KindJournalFailed, Text: "no space left"})
	v := d.oom(0, memory.Spike, "this step needed far more")
	d.decide(recovery.ShrinkStep, 8, v, "for this step only")
	d.walk(30, 0)
	d.entry(runs.Entry{Kind: runs.KindInterrupted, Text: "interrupted after step 30"})
	d.entry(runs.Entry{Kind: runs.KindDamaged, Text: "checkpoint of step 30 is damaged"})
	d.begin()
	d.oom(0, memory.Leak, "held memory rose")
	expectTold(t, New(d.Input).Ledger, `
1 step 20 checkpoint failed:  0.0s
2 step 20 journal failed:  0.0s
3 step 21 out of memory: spike: shrink step (16 × 4 → 8 × 8, once) 0.6s
4 step 30 interrupted:  0.0s
5 step 30 checkpoint damaged:  0.0s
6 step 30 attempt 2:  0.0s
7 step 31 out of memory: leak:  0.6s
`)
	for range 2 { // another failure of the same step is not counted
		if f := New(d.Input).Failures; !f.Open || f.Summary != "memory ran out 2 times, the last one not handled yet: 1 leak, 1 spike" {
			t.Errorf("got %+v", f)
		}
		d.entry(runs.Entry{Kind: runs.KindOOM, Repeated: true, Verdict: &memory.Verdict{Cause: memory.Batch}})
	}
}

// TestLedgerTakesTimeFromTheClock checks that the times of the journal's entries are used
// if no entry gives a duration.
func TestLedgerTakesTimeFromTheClock(t *testing.T) {
	in := night().Input
	for i := range in.Entries {
		in.Entries[i].Seconds = 0
	}
	if lost := New(in).Ledger[1].Lost; lost < 5.9 || lost > 6.1 {
		t.Errorf("lost %.1f s, the probes were 6 s", lost)
	}
}

func TestLedgerIsCutInTheMiddle(t *testing.T) {
	d := newDiary("storm", 1000)
	d.begin()
	for range 1000 {
		v := d.oom(0, memory.Spike, "this step needed far more")
		d.decide(recovery.ShrinkStep, 32, v, "for this step only")
		d.walk(d.step+1, 0)
	}
	r := New(d.Input)
	shown := r.SomeRows()
	n := len(shown)
	if len(r.Ledger) != 1000 || n < 20 || n > 60 || shown[3].Skipped != 1000-n || shown[2].One.Number != 3 || shown[n-1].One.Number != 1000 {
		t.Fatalf("%d rows, %d shown, %d skipped", len(r.Ledger), n, shown[3].Skipped)
	}
	left := fmt.Sprintf("ows left out here: %d", 1000-n) // in Markdown, within a sentence
	for _, text := range []string{html(t, r), markdown(t, r, nil)} {
		if !strings.Contains(text, left) || !strings.Contains(text, "journal.jsonl") {
			t.Errorf("not said: %s", left)
		}
	}
}

// TestLedgerSaysTheSameOnce checks that the ledger does not repeat the reason if a step
// runs out of memory again for the same reason, and that it shows the outcome of a search
// in the row of that search.
func TestLedgerSaysTheSameOnce(t *testing.T) {
	d := newDiary("again", 10)
	d.begin()
	why := "4 GiB asked for at micro-batch 64 in forward, 700 MiB free"
	v := d.oom(0, memory.Batch, why)
	d.briefly(recovery.EmptyCache, 64, v, "empty the cache and run step 1 again with micro-batch 64")
	d.oom(0, memory.Batch, why)
	d.Entries[len(d.Entries)-1].Repeated = true
	d.briefly(recovery.Search, 63, v, "search for the largest micro-batch below 64 that fits")
	d.entry(runs.Entry{Kind: runs.KindSearch, Search: &search.Result{Fits: 28, Recommended: 22}, Text: "the search found 28"})
	d.decide(recovery.Shrink, 22, v, "micro-batch 64 → 22: 28 fits in 24 GiB")
	rows := New(d.Input).Ledger
	if len(rows) != 2 {
		t.Fatalf("%d rows\n%s", len(rows), told(rows))
	}
	if again := rows[1]; again.What != "out of memory again: batch" || again.Why != "" || again.Remedy != "search, then shrink" || again.Reason != "micro-batch 64 → 22: 28 fits in 24 GiB" || again.Result != "" {
		t.Errorf("%+v", again)
	}
}
