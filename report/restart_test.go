package report

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"headroom/memory"
	"headroom/recovery"
	"headroom/runs"
)

// restarted returns the run of a wrapped command that runs out of memory in every life
// but the last, as [headroom/wrap.Run] records it. A life is one process of the command,
// from its start to its end.
func restarted(lives int) *diary {
	d := newDiary("train-run", 0)
	d.Command, d.Device = "python train.py --batch-size 4096", ""
	d.plan = recovery.Plan{Effective: 1 << (lives + 1), World: 1, Micro: 1 << (lives + 1), Uniform: true}
	for life := range lives {
		d.live(life)
		if life == lives-1 {
			d.now = d.now.Add(time.Hour)
			d.entry(runs.Entry{Kind: runs.KindExit, Text: "exit status 0 after 1 h: done", Seconds: 3600})
			d.entry(runs.Entry{Kind: runs.KindDone, Text: "done"})
			break
		}
		was := d.plan.Micro
		v := d.dies(memory.Batch, fmt.Sprintf("2 MiB asked for at micro-batch %d in forward, more than was free", was))
		d.decide(recovery.Shrink, was/2, v, fmt.Sprintf("micro-batch %d → %d; accumulation %d → %d keeps the effective batch at %d",
			was, was/2, 1<<life, 2<<life, d.plan.Effective))
	}
	return d
}

// live begins a life of the command. If changed is above 0, live also records a change of
// the command.
func (d *diary) live(changed int) {
	d.attempt++
	if d.attempt == 1 {
		d.entry(runs.Entry{Kind: runs.KindRun, Text: "a run starts"})
		d.entry(runs.Entry{Kind: runs.KindCommand, Text: "recognised by its --knob settings; checkpoints: /home/me/out/step-*.pt"})
		d.entry(runs.Entry{Kind: runs.KindWorker, Attached: &runs.Attached{Python: "3.11.7", PID: 4711, Torch: "2.11.0+cu130", Mode: "armed"}})
	}
	d.entry(runs.Entry{Kind: runs.KindAttempt, Text: fmt.Sprintf("attempt %d starts", d.attempt)})
	if changed > 0 {
		d.entry(runs.Entry{Kind: runs.KindRemedy, Text: fmt.Sprintf("in the command: --batch-size %d → %d", d.plan.Effective, d.plan.Micro)})
	}
}

// dies records that a life of the command ended because memory ran out.
func (d *diary) dies(cause memory.Cause, why string) *memory.Verdict {
	d.now = d.now.Add(3 * time.Second)
	d.entry(runs.Entry{Kind: runs.KindExit, Text: "exit status 1 after 3 s: out of memory: it failed in forward: RuntimeError: can't allocate memory", Seconds: 3})
	v := &memory.Verdict{Cause: cause, Why: why}
	oom := memory.OutOfMemoryError{Phase: memory.PhaseForward, Micro: d.plan.Largest()}
	d.entry(runs.Entry{Kind: runs.KindOOM, OOM: &oom, Verdict: v, Text: oom.Error()})
	d.Entries[len(d.Entries)-1].Seconds = 3
	return v
}

// gaveUp returns the run of restarted, except that its last life runs out of memory too.
func gaveUp(lives int) *diary {
	d := restarted(lives)
	d.Name, d.Entries = "gave-up", d.Entries[:len(d.Entries)-2]
	why := "the machine's own memory ran out, not the device's"
	v := d.dies(memory.Host, why)
	stop := recovery.Decision{Remedy: recovery.Stop, Plan: d.plan, Verdict: v, Reason: "out of memory in the training, no allowed change is left that would save host memory: " + why, Hint: "use fewer data-loader workers"}
	d.entry(runs.Entry{Kind: runs.KindDecision, Text: stop.Reason, Decision: &stop})
	d.entry(runs.Entry{Kind: runs.KindFailed, Text: "gave up in step 1; what would help: " + stop.Hint, Verdict: v, Decision: &stop})
	return d
}

// TestRestartIsOneRow checks that a single row says that memory ran out, which attempt
// followed, and what was changed in the command.
func TestRestartIsOneRow(t *testing.T) {
	r := New(restarted(3).Input)
	rows := r.Ledger
	if ended := r.Attempts[0].Ended; !strings.HasPrefix(ended, "exit status 1 after 3 s: out of memory") {
		t.Errorf("attempt 1 ended with %q", ended)
	}
	expectTold(t, rows, `
1 step 0 out of memory: batch: shrink (8 × 2) 3.0s
2 step 0 out of memory: batch: shrink (8 × 2 → 4 × 4) 3.0s
`)
	if rows[1].Result != "attempt 3 starts; in the command: --batch-size 16 → 4" {
		t.Errorf("result %q", rows[1].Result)
	}
}

// TestAttemptsWithoutADecisionAreRows checks that an attempt is not put into the row of a
// decision that did not lead to it.
func TestAttemptsWithoutADecisionAreRows(t *testing.T) {
	d := restarted(2)
	d.live(1) // headroom was killed, and the run was resumed
	night := night()
	night.begin() // another attempt, after a micro-batch that grew in place
	for name, c := range map[string]struct {
		d        *diary
		what     string
		attached string
	}{"command": {d, "attempt 3", "in the command: --batch-size 8 → 4"}, "native": {night, "attempt 2", ""}} {
		rows := New(c.d.Input).Ledger
		if row := rows[len(rows)-1]; row.What != c.what || row.Result != c.attached {
			t.Errorf("%s: %+v", name, row)
		}
	}
}

// TestRelaunchIsOneRow checks that a relaunch of a run that headroom trains itself is one
// row, too.
func TestRelaunchIsOneRow(t *testing.T) {
	d := newDiary("leaks", 10)
	d.begin()
	v := d.oom(0, memory.Leak, "held memory rose")
	d.decide(recovery.Relaunch, 64, v, "relaunch from the newest checkpoint")
	d.begin()
	if rows := New(d.Input).Ledger; len(rows) != 1 || rows[0].Result != "attempt 2 from step 0" {
		t.Errorf("%s", told(rows))
	}
}

// TestRefusalIsInTheRowOfItsFailure checks that a failure has only one row if a worker
// left it to the command and the failure then ended the command.
func TestRefusalIsInTheRowOfItsFailure(t *testing.T) {
	d := restarted(1)
	d.entry(runs.Entry{Kind: runs.KindRefused, OOM: &memory.OutOfMemoryError{Requested: memory.GiB, Micro: 4, Phase: memory.PhaseBackward}, Where: "train.py:38",
		Refusal: &runs.Refusal{Why: "the graph is kept"}}.Told())
	d.dies(memory.Batch, "too large")
	rows := New(d.Input).Ledger
	if len(rows) != 1 || rows[0].Why != "at micro-batch 4 in backward: 1 GiB asked for (train.py:38); left to the command's own code: the graph is kept. too large" || rows[0].What != "out of memory: batch" {
		t.Errorf("%s%q", told(rows), rows[0].Why)
	}
}

// TestGivingUpIsSaidOnce checks that each page says once why nothing more was tried, and what would help.
func TestGivingUpIsSaidOnce(t *testing.T) {
	native := newDiary("too-large", 10)
	native.begin()
	v := native.oom(0, memory.Model, "micro-batch 1 needs 25 GiB")
	stop := recovery.Decision{Remedy: recovery.Stop, Plan: native.plan, Verdict: v, Reason: "no allowed change is left: micro-batch 1 needs 25 GiB", Hint: "use fewer data-loader workers"}
	native.entry(runs.Entry{Kind: runs.KindDecision, Text: stop.Reason, Decision: &stop})
	native.entry(runs.Entry{Kind: runs.KindFailed, Text: "gave up in step 1; what would help: " + stop.Hint, Verdict: v, Decision: &stop})
	refused := restarted(2) // no remedy is allowed
	v = refused.dies(memory.Batch, "too large")
	stop.Reason = "exit status 1: no allowed change is left"
	refused.decide(recovery.Stop, 8, v, stop.Reason)
	refused.Entries[len(refused.Entries)-1].Decision.Hint = stop.Hint
	refused.entry(runs.Entry{Kind: runs.KindFailed, Text: stop.Reason})
	for name, d := range map[string]*diary{"wrapped": gaveUp(13), "native": native, "refused": refused} {
		r := New(d.Input)
		for _, page := range []string{html(t, r), markdown(t, r, nil)} {
			if reasons, hints := strings.Count(page, "no allowed change is left"), strings.Count(page, "use fewer data-loader workers"); reasons != 1 || hints != 1 {
				t.Errorf("%s: the reason is said %d times, what helps %d times\n%s", name, reasons, hints, told(r.Ledger))
			}
		}
		if last := r.Ledger[len(r.Ledger)-1]; last.Remedy != "stop" || last.Tone != Bad || !r.Failures.Fatal {
			t.Errorf("%s: %+v, %+v", name, last, r.Failures)
		}
	}
}

// TestTimeLostByCause checks that the page says how much time each cause cost, and how
// much time was lost for other reasons.
func TestTimeLostByCause(t *testing.T) {
	lines := func(d *diary) string { return strings.Join(New(d.Input).failureCard().Lines, "; ") }
	d := gaveUp(4)
	if got := lines(d); got != "3 × batch: 9 s; 1 × host: 3 s" {
		t.Errorf("got %q", got)
	}
	d.Entries = append([]runs.Entry{{Kind: runs.KindCheckpointFailed, Text: "no space", Seconds: 2, Time: d.now}}, d.Entries...)
	if got := lines(d); got != "3 × batch: 9 s; 1 × host: 3 s; everything else: 2 s" {
		t.Errorf("got %q", got)
	}
	if r := New(d.Input); !strings.Contains(html(t, r), `<dd class="note">3 × batch: 9 s</dd>`) || !strings.Contains(markdown(t, r, nil), "3 × batch: 9 s; 1 × host: 3 s") {
		t.Error("the pages do not say so")
	}
	if got := lines(restarted(4)); got != "" { // there is only one cause
		t.Errorf("got %q", got)
	}
}

// TestSaysWhatACommandIs checks that the page says how the command was recognised, where
// its checkpoints are, which versions of Python and PyTorch it uses, and which versions
// of headroom executed the run and drew the page.
func TestSaysWhatACommandIs(t *testing.T) {
	d := restarted(2)
	d.entry(runs.Entry{Kind: runs.KindCommand, Text: "recognised as transformers; checkpoints: /home/me/out/checkpoint-*"})
	d.entry(runs.Entry{Kind: runs.KindWorker, Attached: &runs.Attached{Python: "3.11.7", PID: 42, Torch: "2.11.0+cu130", Mode: "armed", World: 2}})
	d.entry(runs.Entry{Kind: runs.KindWorker, Text: "a batch of 40 rows runs in 4 pieces"})
	bare := []runs.Entry{{Kind: runs.KindWorker, Attached: &runs.Attached{Python: "3.12", PID: 1, Torch: "none", Mode: "armed"}}, {Kind: runs.KindWarning, Text: "attached to python 2 (pid 1, torch 2, armed)"}}
	if got := about(bare); got != "Python 3.12" {
		t.Errorf("without PyTorch: %q", got)
	}
	for versions, want := range map[string]string{"": "Drawn by headroom 2.0", "2.0 2.0": "Run and drawn by headroom 2.0", "1.0": "Run by headroom 1.0, drawn by headroom 2.0", "1.0 2.0": "Run by headroom 1.0, then 2.0, drawn by headroom 2.0"} {
		in := d.Input
		for _, v := range strings.Fields(versions) {
			in.Entries = append(in.Entries, runs.Entry{Kind: runs.KindAttempt, Attempt: 3, Version: v})
		}
		in.Version = "2.0"
		r := New(in)
		if page := html(t, r); !strings.Contains(page, want+" from the journal") {
			t.Errorf("%q: the page does not say %q", versions, want)
		}
		const about = "recognised as transformers; checkpoints: /home/me/out/checkpoint-* · Python 3.11.7, PyTorch 2.11.0+cu130"
		if !strings.Contains(strings.ReplaceAll(html(t, r), "&#43;", "+"), about) || !strings.Contains(markdown(t, r, nil), "recognised as transformers") {
			t.Error("the pages do not say what ran")
		}
	}
}
