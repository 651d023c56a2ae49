package report

import (
	"math"
	"strings"
	"testing"
	"time"

	"headroom/memory"
	"headroom/recovery"
	"headroom/runs"
)

// worst returns a run with everything that makes a page large: thousands of failures of
// every cause, hundreds of attempts and of ways to cut a step, other processes, numbers
// that vary from step to step, and long texts full of characters that HTML escapes.
func worst() *diary {
	d := newDiary("worst", 20_000)
	long := strings.Repeat(`<"a reason & its numbers">`, 400)
	d.Trained, d.Device, d.Version = long, long, long
	for d.step < 10_000 {
		if d.step%50 == 0 {
			d.attempt++
			d.entry(runs.Entry{Kind: runs.KindAttempt, Text: long})
			d.entry(runs.Entry{Kind: runs.KindFault, Text: long, Fault: &runs.Fault{Time: d.now, Text: long}})
			d.entry(runs.Entry{Kind: runs.KindInterrupted, Text: long})
		}
		if d.step%3 == 0 {
			v := d.oom(memory.Bytes(d.step%7)*memory.GiB, everyCause[d.step/3%len(everyCause)], long)
			d.entry(runs.Entry{Kind: runs.KindDecision, Decision: &recovery.Decision{Remedy: recovery.ShrinkStep, Plan: d.plan.WithMicro(1 + d.step%60), Verdict: v, Reason: long, Hint: long}})
			d.entry(runs.Entry{Kind: runs.KindRemedy, Text: long})
			d.plan.Micro = 1 + d.step%60
		}
		d.finish(memory.Bytes(d.step*d.step%11) * memory.GiB)
		s := &d.Steps[len(d.Steps)-1]
		s.Loss, s.LR, s.Seconds = 2+math.Sin(float64(d.step*d.step)), 1+math.Sin(float64(d.step)), 1+math.Abs(math.Sin(float64(3*d.step)))
		s.Samples += d.step % 2
		s.Splits = []int{1 + d.step%50, 1}
	}
	v := d.oom(0, memory.Model, long)
	stop := recovery.Decision{Remedy: recovery.Stop, Plan: d.plan, Verdict: v, Reason: long, Hint: long}
	d.entry(runs.Entry{Kind: runs.KindFailed, Decision: &stop, Text: long})
	d.Problems = []string{long, long}
	return d
}

var everyCause = []memory.Cause{memory.Spike, memory.Fragmentation, memory.Foreign, memory.Leak, memory.Batch, memory.Unknown, memory.Host, memory.Model}

// worstCommand returns the run of worst as if it were the run of a wrapped command.
func worstCommand() *diary {
	d := worst()
	d.Command, d.Seen = strings.Repeat(`--flag "a & b" `, 10_000), nil
	for i, s := range d.Steps {
		m := s.Memory
		m.Allocated = m.Peak / memory.Bytes(2+i%5)
		d.Seen = append(d.Seen, runs.ProcessStep{Time: d.Entries[0].Time.Add(time.Duration(i) * time.Second), Attempt: 1 + i/50, PID: 7, Made: 1 + i, Pieces: 1 + i%9, Seconds: s.Seconds, Memory: m,
			Forward: m.Peak / memory.Bytes(2+i%3), Backward: m.Peak / memory.Bytes(2+i%4)})
	}
	return d
}

// TestPageIsSmall checks that a page is below 150 KiB, whatever happened in the run, and
// says what it leaves out.
func TestPageIsSmall(t *testing.T) {
	for name, d := range map[string]*diary{"native": worst(), "command": worstCommand(), "storm": storm()} {
		page := html(t, New(d.Input))
		if len(page) > 150<<10 {
			t.Errorf("%s: a page of %d bytes", name, len(page))
		}
		if name == "storm" {
			continue
		}
		for _, left := range []string{"Rows left out here: ", "Attempts left out here: 188. The run's folder has them all: <code>grep"} {
			if !strings.Contains(page, left) {
				t.Errorf("%s: the page does not say %q", name, left)
			}
		}
		if name == "native" && !strings.Contains(page, "sizes left out here: ") {
			t.Error("the page does not say that sizes are left out")
		}
	}
}

// TestClipped checks that texts are cut between characters, by their length in HTML.
func TestClipped(t *testing.T) {
	for in, want := range map[string]string{"": "", "abcdefghij": "abcdefghij", "abcdefghijk": "abcdefghij …", "abcdefghi jk": "abcdefghi …", "äöüßéx": "äöüßé …", `""x`: `"" …`} {
		if got := clipped(in, 10); got != want {
			t.Errorf("%q became %q, want %q", in, got, want)
		}
	}
}
