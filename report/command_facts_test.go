package report

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"headroom/memory"
	"headroom/recovery"
	"headroom/runs"
)

// commandRun returns the diary of a wrapped command's run.
func commandRun() *diary {
	d := newDiary("train-run", 0)
	d.Command, d.Device = "python train.py", ""
	d.attempt = 1
	d.entry(runs.Entry{Kind: runs.KindRun, Text: "a run starts"})
	d.entry(runs.Entry{Kind: runs.KindAttempt, Text: "attempt 1 starts"})
	return d
}

// life adds an attempt that begins from the newest checkpoint.
func (d *diary) life() {
	d.attempt++
	d.entry(runs.Entry{Kind: runs.KindAttempt, Text: "attempt"})
}

// made adds what a worker saw in the attempt. Each line is a pair: the number of steps
// finished so far, and the seconds per step. The seconds of the first line are recorded
// as not known.
func (d *diary) made(lines ...[2]float64) {
	for i, l := range lines {
		s := runs.ProcessStep{Time: d.now, Attempt: d.attempt, PID: 7, Made: int(l[0]), Seconds: l[1]}
		if i == 0 {
			s.Seconds = 0
		}
		d.Seen = append(d.Seen, s)
	}
}

// saved adds a checkpoint that headroom found after an attempt.
func (d *diary) saved(step int, path string) {
	d.step = step
	d.entry(runs.Entry{Kind: runs.KindCheckpoint, Text: "checkpoint", Path: path})
}

// diedOf adds a failure that ended an attempt. seconds is how long that attempt lasted;
// if it is 0, the time lost is not known.
func (d *diary) diedOf(seconds float64) {
	d.entry(runs.Entry{Kind: runs.KindExit, Text: "exit status 1 after 3 s: out of memory", Seconds: seconds})
	plan := d.plan
	e := runs.Entry{Kind: runs.KindOOM, Plan: &plan, Text: "out of memory", OOM: &memory.OutOfMemoryError{Micro: plan.Largest()}, Verdict: &memory.Verdict{Cause: memory.Batch, Why: "too large"}}
	d.entry(e)
	d.Entries[len(d.Entries)-1].Seconds = seconds
	d.now = d.now.Add(time.Millisecond)
}

func cardOf(r *Report, question string) string {
	for _, c := range r.Cards() {
		if c.Question == question {
			return strings.TrimSuffix(c.Answer+"; "+c.Note, "; ")
		}
	}
	return ""
}

// TestCommandsProgress checks that the report counts only those steps of a wrapped
// command that a worker saw, and that it does not present the step of a checkpoint as the
// number of steps.
func TestCommandsProgress(t *testing.T) {
	done := runs.Entry{Kind: runs.KindDone, Text: "done"}
	for _, c := range []struct {
		name                     string
		happens                  func(*diary)
		title, steps, checkpoint string
	}{
		{"12 steps, a checkpoint every 5", func(d *diary) {
			d.made([2]float64{1, 0}, [2]float64{9, 0.5}, [2]float64{12, 2})
			d.saved(10, "out/step-0010.pt")
			d.entry(done)
		}, "finished: 12 steps", "12 optimizer steps, 0.909 s each on average", "step 10; out/step-0010.pt"},
		{"without a worker", func(d *diary) { d.saved(10, "out/step-0010.pt"); d.entry(done) },
			"finished: newest checkpoint: step 10", "", "step 10; out/step-0010.pt"},
		{"a checkpoint without a number", func(d *diary) { d.saved(0, "out/last.pt"); d.entry(done) }, "finished", "", "step unknown; out/last.pt"},
		{"nothing is known", func(d *diary) { d.entry(done) }, "finished", "", ""},
		{"two attempts", func(d *diary) {
			d.made([2]float64{1, 0}, [2]float64{7, 1})
			d.saved(5, "out/5")
			d.life()
			d.made([2]float64{1, 0}, [2]float64{3, 4})
			d.entry(done)
		}, "finished: 3 steps after checkpoint 5 in attempt 2 of 2", "10 optimizer steps, 1.75 s each on average; in 2 processes; repeated steps are counted each time", "step 5; out/5"},
		{"two of three attempts", func(d *diary) {
			d.made([2]float64{1, 0}, [2]float64{7, 1})
			d.saved(5, "out/5")
			d.life()
			d.life()
			d.made([2]float64{1, 0}, [2]float64{3, 4})
			d.entry(done)
		}, "finished: 3 steps after checkpoint 5 in attempt 3 of 3", "10 optimizer steps, 1.75 s each on average; in 2 processes; repeated steps are counted each time", "step 5; out/5"},
		{"an attempt that starts over", func(d *diary) {
			d.saved(5, "out/5")
			d.step = 0
			d.life()
			d.entry(done)
		}, "finished: newest checkpoint: step 5", "", "step 5; out/5"},
		{"an attempt from a checkpoint of which nothing else is recorded", func(d *diary) {
			d.step = 8
			d.life()
			d.entry(done)
		}, "finished: newest checkpoint: step 8", "", "step 8"},
	} {
		d := commandRun()
		c.happens(d)
		r := New(d.Input)
		if r.Outcome.Title != c.title || cardOf(r, "Steps") != c.steps || cardOf(r, "Newest checkpoint") != c.checkpoint || cardOf(r, "Checkpoints") != "" {
			t.Errorf("%s: %q, steps %q, checkpoint %q", c.name, r.Outcome.Title, cardOf(r, "Steps"), cardOf(r, "Newest checkpoint"))
		}
	}
}

// TestCommandsLedger checks four things in the ledger of a wrapped command: the steps in
// which things happened, the time that they cost, the plan before the first change, and
// how the attempts ended.
func TestCommandsLedger(t *testing.T) {
	d := commandRun()
	d.entry(runs.Entry{Kind: runs.KindRefused, Text: "left to the command", InStep: 1})
	d.diedOf(4)
	d.decide(recovery.Shrink, 32, nil, "half")
	d.life()
	in := survivedInside()
	in.InStep = 2
	d.entry(in)
	d.made([2]float64{1, 0}, [2]float64{9, 1})
	d.saved(5, "out/5")
	d.diedOf(0)
	d.life()
	in.InStep, in.Seconds = 3, 0
	d.entry(in)
	d.entry(runs.Entry{Kind: runs.KindWarning, Text: "careful"})
	d.entry(runs.Entry{Kind: runs.KindDone, Text: "done"})
	r := New(d.Input)
	var got []string
	for _, row := range r.Ledger {
		got = append(got, strings.Join([]string{row.At(), row.What, row.Cuts(), row.Cost()}, " | "))
	}
	want := []string{
		"1 | out of memory: batch | 64 × 1 → 32 × 2 | 4 s",
		"2 | out of memory: batch |  | 2 s",
		"10 | out of memory: batch |  | not known",
		"– | attempt 3 |  | –",
		"5+3 | out of memory: batch |  | not known",
		"– | warning |  | –",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if card := cardOf(r, "Out of memory"); !strings.Contains(card, "6 s lost to failures") || !strings.HasSuffix(card, ", the time lost to 2 failures is not known") {
		t.Error(card)
	}
	var page bytes.Buffer
	if err := r.HTML(&page); err != nil {
		t.Fatal(err)
	}
	text := page.String()
	made := func(from, made, end string) string {
		return fmt.Sprintf(`<td class="n" data-label="from checkpoint">%s</td><td class="n" data-label="steps made">%s</td><td data-label="end">%s`, from, made, end)
	}
	for _, want := range []string{">From checkpoint<", ">Steps made<", made("–", "–", "exit status 1 after 3 s: out of memory</td>"),
		made("–", "9", "exit status 1"), made("5", "–", "done</td>")} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in the page", want)
		}
	}
	if strings.Contains(text, "end not recorded") {
		t.Error("the end of an attempt was recorded")
	}
}

// TestUnknownCost checks that neither the page nor the metrics say that a failure cost
// nothing if its cost is not known.
func TestUnknownCost(t *testing.T) {
	d := commandRun()
	d.diedOf(0)
	d.entry(runs.Entry{Kind: runs.KindDecision, Decision: &recovery.Decision{Remedy: recovery.Stop, Plan: d.plan, Reason: "it is not known"}})
	d.entry(runs.Entry{Kind: runs.KindFailed, Text: "it is not known"})
	r := New(d.Input)
	if card := cardOf(r, "Out of memory"); card != "1 time, the last one ending the run; 1 × batch, the time lost to 1 failure is not known" || r.Lost() != "not known" {
		t.Errorf("%q, %q", card, r.Lost())
	}
}

// TestCommandsAdvice checks that the report of a command recommends headroom resume only
// if that would work, and recommends no change if the command's batches ran in pieces.
func TestCommandsAdvice(t *testing.T) {
	failed := func(d *diary) { d.entry(runs.Entry{Kind: runs.KindFailed, Text: "exit status 1"}) }
	resumable := func(d *diary) { d.Resumable = true; failed(d) }
	pieces := func(pieces int) func(*diary) {
		return func(d *diary) {
			d.entry(survivedInside())
			d.made([2]float64{1, 0}, [2]float64{3, 2})
			d.Seen[1].Rows, d.Seen[1].Pieces = 65536, pieces
			d.entry(runs.Entry{Kind: runs.KindDone, Text: "done"})
		}
	}
	for _, c := range []struct {
		name    string
		happens func(*diary)
		want    string
	}{
		{"nothing was seen", func(d *diary) { d.entry(runs.Entry{Kind: runs.KindDone, Text: "done"}) }, "nothing: no out-of-memory failure was seen"},
		{"not recognised", failed, "fix what ended the run, then start the command again"},
		{"recognised", resumable, "fix what ended the run, then run headroom resume train-run, which continues from the newest checkpoint, or from the beginning if there is none"},
		{"in pieces", pieces(8), "nothing has to change: batches of 65,536 rows ran in 8 pieces and gave the same gradients as the whole batch"},
		{"whole again", pieces(1), "nothing has to change: the run went on after every failure"},
	} {
		d := commandRun()
		c.happens(d)
		if got := strings.Join(New(d.Input).Advice, "\n"); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
		if card := cardOf(New(d.Input), "Out of memory"); (card == "none seen") != (New(d.Input).Failures.Total == 0) {
			t.Errorf("%s: out of memory: %s", c.name, card)
		}
	}
}

// TestTimeLostHasTheNewStart checks that the time lost to a failure includes the time in which a
// new process gets back to a checkpoint, up to its first step, and nothing else.
func TestTimeLostHasTheNewStart(t *testing.T) {
	for _, c := range []struct {
		name  string
		saved int // step of the checkpoint that the new process begins from; 0 if it starts over
		first int // number of the first step that was reported
		want  string
	}{
		{"from a checkpoint", 5, 1, "32 s"},
		{"from the beginning: the lost attempt's time has its start", 0, 1, "4 s"},
		{"the first step is not known", 5, 3, "4 s"},
	} {
		d := commandRun()
		d.made([2]float64{1, 0}, [2]float64{7, 2})
		if c.saved > 0 {
			d.saved(c.saved, "out/5")
		}
		d.diedOf(4)
		d.decide(recovery.Shrink, 32, nil, "half")
		d.life()
		d.now = d.now.Add(30 * time.Second)
		d.made([2]float64{float64(c.first), 0}, [2]float64{9, 2})
		d.entry(runs.Entry{Kind: runs.KindDone, Text: "done"})
		r := New(d.Input)
		if got := r.Ledger[0].Cost(); len(r.Ledger) != 1 || got != c.want || r.Failures.Lost < 4 {
			t.Errorf("%s: %s, want %s; %+v", c.name, got, c.want, r.Ledger)
		}
	}
}

// TestUnknownCauses checks that a failure whose cause is not known is not called a cause.
func TestUnknownCauses(t *testing.T) {
	unknown := survivedInside()
	unknown.Verdict, unknown.Decision = nil, nil
	for want, entries := range map[string][]runs.Entry{
		"1 time, all survived; the time lost to 1 failure is not known":                                   {unknown},
		"2 times, all survived; 1 × batch, 1 × cause not known, the time lost to 2 failures is not known": {unknown, survivedInside()},
	} {
		d := commandRun()
		for _, e := range entries {
			e.Seconds = 0
			d.entry(e)
		}
		d.entry(runs.Entry{Kind: runs.KindDone, Text: "done"})
		r := New(d.Input)
		if got := cardOf(r, "Out of memory"); got != want || strings.Contains(r.Failures.Summary, "unknown") {
			t.Errorf("%q, want %q; %q", got, want, r.Failures.Summary)
		}
	}
}

// TestWhatHoldsMemory checks that what was found to hold memory is the first card and the first advice, and
// that no other advice about the leak stands beside it.
func TestWhatHoldsMemory(t *testing.T) {
	held := memory.Holder{Kind: "collected", Name: "seen", Kept: "train.py:7", Tensors: 49, Bytes: memory.GiB, Rate: 1, PerStep: memory.MiB, Cure: "empty `seen`"}
	d := commandRun()
	if r := New(d.Input); r.Cards()[0].Question == "What holds memory" || r.Holder != nil {
		t.Errorf("nothing was found: %+v", r.Cards()[0])
	}
	d.entry(runs.Entry{Kind: runs.KindWarning, Holder: &held}.Told())
	r := New(d.Input)
	if c := r.Cards()[0]; c.Question != "What holds memory" || c.Answer != "seen" || c.Note != held.Facts() || !slices.Equal(c.Lines, []string{held.Cure}) || c.Tone != Warn {
		t.Errorf("%+v", c)
	}
	if r.Advice[0] != held.String() {
		t.Errorf("%q", r.Advice)
	}
	d.entry(runs.Entry{Kind: runs.KindOOM, OOM: &memory.OutOfMemoryError{Requested: memory.GiB}, Verdict: &memory.Verdict{Cause: memory.Leak, Why: held.Facts()}})
	d.entry(runs.Entry{Kind: runs.KindFailed, Text: "out of memory"})
	r = New(d.Input)
	if got := r.Advice[0]; !strings.HasPrefix(got, held.String()+". Then ") || r.Cards()[0].Tone != Bad {
		t.Errorf("%q, %+v", got, r.Cards()[0])
	}
	for _, text := range r.Advice[1:] {
		if strings.Contains(text, "What helps") || strings.Contains(text, "keeps growing") {
			t.Errorf("beside it: %q", text)
		}
	}
}
