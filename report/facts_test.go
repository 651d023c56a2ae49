package report

import (
	"math"
	"regexp"
	"strings"
	"testing"

	"headroom/memory"
	"headroom/recovery"
	"headroom/report/chart"
	"headroom/runs"
)

func TestFactsOfANight(t *testing.T) {
	r := New(night().Input)
	if r.Outcome.State != Finished || r.Outcome.Tone != Good || r.Outcome.Title != "finished: 200 of 200 steps" {
		t.Errorf("outcome %+v", r.Outcome)
	}
	m := r.Memory
	if m.Capacity != 24*memory.GiB || m.Foreign != 9*memory.GiB || m.ForeignFrom != 81 || m.ForeignTo != 120 {
		t.Errorf("memory %+v", m)
	}
	if want := 1 - float64(m.Peak)/float64(24*memory.GiB); m.Headroom != want || m.Peak != r.Memory.Peak || m.Tightest > m.Headroom {
		t.Errorf("headroom %v at its tightest %v, want %v", m.Headroom, m.Tightest, want)
	}
	if k := r.Checkpoints; k.Written != 4 || k.Newest != 200 || k.Failed+k.Damaged != 0 {
		t.Errorf("checkpoints %+v", k)
	}
	if len(r.Sizes) != 2 || r.Sizes[0].Micro != 22 || r.Sizes[0].Steps != 160 || r.Sizes[1].Accumulation != 5 || r.Sizes[1].From != 81 || r.Sizes[1].To != 120 {
		t.Errorf("sizes %+v", r.Sizes)
	}
	if f := r.Failures; f.Total != 4 || math.Abs(f.Lost-8.5) > 0.01 || f.Share <= 0 || f.Share > 0.05 || f.Fatal || f.Open {
		t.Errorf("failures %+v", f)
	}
}

func TestThroughputBeforeAndAfter(t *testing.T) {
	d := newDiary("slower", 40)
	d.begin()
	d.walk(20, 0)
	v := d.oom(0, memory.Batch, "too large")
	d.decide(recovery.Shrink, 8, v, "smaller")
	d.walk(40, 0)
	for i := range d.Steps {
		d.Steps[i].Seconds = 1
		if i >= 20 {
			d.Steps[i].Seconds = 2
		}
	}
	if s := New(d.Input).Speed; s.Before != 64 || s.After != 32 || s.InSteps != 60 {
		t.Errorf("got %+v", s)
	}
}

func TestOutcome(t *testing.T) {
	end := func(k runs.Kind) func(*diary) {
		return func(d *diary) { d.entry(runs.Entry{Kind: k, Text: "the reason"}) }
	}
	tests := []struct {
		name   string
		change func(d *diary)
		state  State
		tone   Tone
		advice string
	}{
		{"done", end(runs.KindDone), Finished, Bad, "nothing"}, // 10 of 20 steps: the journal is wrong
		{"failed", end(runs.KindFailed), Failed, Bad, "fix what ended the run, then start the same command again: it begins from step 0"},
		{"interrupted", end(runs.KindInterrupted), Interrupted, Warn, "start the same command again"},
		{"killed after a checkpoint of step 0", func(d *diary) {
			d.Entries = append(d.Entries, runs.Entry{Kind: runs.KindCheckpoint, Attempt: 1, Time: d.Entries[0].Time})
		}, CutOff, Bad, "start the same command again: it continues from step 0"},
		{"killed", func(*diary) {}, CutOff, Bad, "start the same command again"},
		{"running", func(d *diary) { d.Running = true }, Running, Info, "nothing yet"},
		{"running again", func(d *diary) { end(runs.KindInterrupted)(d); d.begin(); d.Running = true }, Running, Info, "nothing yet"},
		{"nothing", func(d *diary) { d.Entries, d.Steps = nil, nil }, Empty, Warn, "nothing yet"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			d := newDiary("run", 20)
			d.plan.Micro = 22
			d.begin()
			d.walk(10, 0)
			test.change(d)
			r := New(d.Input)
			if r.Outcome.State != test.state || r.Outcome.Tone != test.tone || !strings.HasPrefix(r.Advice[0], test.advice) {
				t.Errorf("%s, %s, advice %q", r.Outcome.State, r.Outcome.Tone, r.Advice)
			}
		})
	}
}

func TestAttempts(t *testing.T) {
	d := newDiary("twice", 60)
	d.plan.Micro = 16
	d.begin()
	d.walk(50, 0)
	d.entry(runs.Entry{Kind: runs.KindInterrupted, Text: "interrupted after step 50"})
	began := d.now
	d.now = d.now.Add(8 * 3600e9) // the pause does not count as active time
	d.begin()
	d.walk(60, 0)
	d.entry(runs.Entry{Kind: runs.KindDone, Text: "done"})
	r := New(d.Input)
	if len(r.Attempts) != 2 || r.Attempts[0].To != 50 || r.Attempts[0].Ended != "interrupted after step 50" || r.Attempts[1].From != 50 || r.Attempts[1].Ended != "done" {
		t.Errorf("got %+v", r.Attempts)
	}
	if got, most := r.Outcome.Active, began.Sub(d.Entries[0].Time)+20e9; got > most {
		t.Errorf("%v in attempts, at most %v", got, most)
	}
}

// TestMadeUpAmounts checks that amounts that were made up to explain a failure are not
// shown. Journals written by earlier versions contain such amounts.
func TestMadeUpAmounts(t *testing.T) {
	oom := memory.OutOfMemoryError{Requested: 4 * memory.MiB, Phase: memory.PhaseForward, Micro: 8}.Assume(24 * memory.GiB)
	d := newDiary("cpu", 10)
	d.begin()
	d.entry(runs.Entry{Kind: runs.KindOOM, OOM: &oom, Text: oom.Error()})
	if r := New(d.Input); r.Memory.Capacity != 0 || r.Ledger[0].Needed != 4*memory.MiB {
		t.Errorf("%+v, needed %v", r.Memory, r.Ledger[0].Needed)
	}
}

// TestNewestCheckpoint checks that a damaged checkpoint does not count as the newest
// one. The next attempt shows from which checkpoint the run continues.
func TestNewestCheckpoint(t *testing.T) {
	d := newDiary("damaged", 200)
	d.plan.Micro = 16
	d.begin()
	d.walk(100, 0)
	d.entry(runs.Entry{Kind: runs.KindDamaged})
	d.step = 50
	d.begin()
	if k := New(d.Input).Checkpoints; k.Newest != 50 || k.Damaged != 1 || k.Written != 2 {
		t.Errorf("got %+v", k)
	}
}

// TestMemoryPictureLimits checks that the memory picture always includes the capacity,
// and that a failure that needed many times as much does not flatten everything else.
func TestMemoryPictureLimits(t *testing.T) {
	for _, needed := range []memory.Bytes{1, 20 * memory.GiB, 26 * memory.GiB, 500 * memory.GiB} {
		d := newDiary("limits", 10)
		d.plan.Micro = 22
		d.begin()
		d.oom(0, memory.Batch, "too large")
		d.Entries[len(d.Entries)-1].OOM.Requested = needed
		d.walk(10, 0)
		if c := memoryChart(New(d.Input)); c.Y0 != 0 || c.Y1 <= 24 || c.Y1 > 24*overshoot+1e-9 {
			t.Errorf("needed %v: from %v to %v GiB", needed, c.Y0, c.Y1)
		}
	}
}

func TestAdvice(t *testing.T) {
	failing := func(cause memory.Cause, r recovery.Remedy, micro int) func(*diary) {
		return func(d *diary) {
			v := d.oom(0, cause, "why")
			d.decide(r, micro, v, "reason")
			d.walk(d.step+10, 0)
		}
	}
	tests := []struct {
		name   string
		change func(*diary)
		want   string
	}{
		{"batch", failing(memory.Batch, recovery.Shrink, 8), "micro-batch 8 would have fitted from the start: set batch.micro: 8, or auto"},
		{"spike", failing(memory.Spike, recovery.ShrinkStep, 8), "1 step needed far more"},
		{"fragmentation", failing(memory.Fragmentation, recovery.ShrinkStep, 8), "expandable_segments:True"},
		{"leak", failing(memory.Leak, recovery.Relaunch, 16), "keeps growing"},
		{"foreign", failing(memory.Foreign, recovery.Wait, 16), "other processes held"},
		{"checkpoint", func(d *diary) { d.entry(runs.Entry{Kind: runs.KindCheckpointFailed}) }, "1 checkpoint could not be written"},
		{"damaged", func(d *diary) { d.entry(runs.Entry{Kind: runs.KindDamaged}) }, "1 checkpoint found damaged"},
		{"unused", func(d *diary) { d.plan.Micro = 4; d.Steps = nil; d.step = 0; d.walk(10, 0) }, "of the memory was never used: set batch.micro: auto to run more than 4 samples at once"},
		{"tight", func(d *diary) { d.Steps[3].Memory.Peak = 24*memory.GiB - 1 }, "step 4 left only"},
		{"no number", func(d *diary) { d.Steps[3].Loss = math.NaN() }, "the loss is NaN or infinite in 1 step"},
		{"calm", func(*diary) {}, "nothing: the settings fit"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			d := newDiary("run", 20)
			d.Planned = 0
			d.plan.Micro = 22
			d.begin()
			d.walk(10, 0)
			test.change(d)
			d.entry(runs.Entry{Kind: runs.KindDone})
			if all := strings.Join(New(d.Input).Advice, "\n"); !strings.Contains(all, test.want) {
				t.Errorf("got %q, want %q", all, test.want)
			}
		})
	}
}

// TestSimulatedProcess checks that a process is called simulated if the run's own
// configuration simulates it, and that the advice does not treat it as real.
func TestSimulatedProcess(t *testing.T) {
	earnest := regexp.MustCompile(`other processes held|to itself|stop them|others held|left only`)
	for _, simulated := range []bool{false, true} {
		d := newDiary("run", 20)
		d.Planned, d.Simulated, d.plan.Micro = 0, simulated, 22
		d.begin()
		d.walk(10, 0)
		v := d.oom(9*memory.GiB, memory.Foreign, "other processes hold 9 GiB of 24 GiB")
		d.decide(recovery.Wait, 16, v, "wait for other processes to release memory")
		d.walk(14, 9*memory.GiB)
		v = d.oom(9*memory.GiB, memory.Foreign, "other processes hold 9 GiB of 24 GiB")
		d.entry(runs.Entry{Kind: runs.KindDecision, Decision: &recovery.Decision{Remedy: recovery.Stop, Plan: d.plan, Verdict: v,
			Reason: "other processes hold the memory", Hint: "stop them, choose another device, or allow waiting"}})
		d.entry(runs.Entry{Kind: runs.KindFailed, Text: "it gave up"})
		r := New(d.Input)
		var page strings.Builder
		if err := r.Markdown(&page, func(chart.Picture) string { return "" }); err != nil {
			t.Fatal(err)
		}
		found := earnest.FindAllString(page.String(), -1)
		if simulated && (len(found) > 0 || strings.Count(page.String(), `turn the squeeze off with --set 'device.squeeze=\[\]'`) < 2) {
			t.Errorf("%q is in the report of a run with a simulated process\n%s", found, page.String())
		}
		if !simulated && len(found) < 4 {
			t.Errorf("of a real process there is only %q\n%s", found, page.String())
		}
	}
}

// TestLeftByOthers checks that memory held by other processes does not count against a
// run if it lies beyond the run's limit, and that the amount left is never below zero.
func TestLeftByOthers(t *testing.T) {
	for _, c := range []struct {
		name   string
		after  memory.Stats
		want   float64
		advice bool
	}{
		{"a limit of 24 GiB on a device of 80, 20 of which others hold",
			memory.Stats{Capacity: 24 * memory.GiB, Reserved: 14 * memory.GiB, Free: 46 * memory.GiB, Foreign: 20 * memory.GiB, Peak: 12 * memory.GiB}, 0.5, false},
		{"others came after the peak",
			memory.Stats{Capacity: 260 * memory.KiB, Reserved: memory.KiB, Foreign: 259 * memory.KiB, Peak: 193 * memory.KiB}, 0, true},
	} {
		d := newDiary("left", 2)
		d.begin()
		d.walk(2, 0)
		for i := range d.Steps {
			d.Steps[i].Memory = c.after
		}
		r := New(d.Input)
		if r.Memory.Tightest != c.want {
			t.Errorf("%s: %v left at its tightest, want %v", c.name, r.Memory.Tightest, c.want)
		}
		if near := strings.Contains(strings.Join(r.Advice, " "), "left only"); near != c.advice {
			t.Errorf("%s: advice %q", c.name, r.Advice)
		}
	}
}

// TestAdviceAfterNaN checks that the report of a native run that ended because of a NaN does
// not recommend to continue it. Earlier versions recorded only a text.
func TestAdviceAfterNaN(t *testing.T) {
	for value, want := range map[string]string{"loss": "lower optimizer.lr or set optimizer.clip, then start the same command again with --fresh", "": "fix what ended the run, then "} {
		d := newDiary("nan", 10)
		d.begin()
		d.walk(4, 0)
		d.entry(runs.Entry{Kind: runs.KindFailed, Text: "step 5: the loss is NaN", NotFinite: value})
		if got := New(d.Input).Advice[0]; !strings.HasPrefix(got, want) {
			t.Errorf("%q: %s", value, got)
		}
	}
}

// TestNoPlanIsAdvisedIfNoneFits checks that a run that gave up for lack of memory is not told
// to begin with a plan that fits.
func TestNoPlanIsAdvisedIfNoneFits(t *testing.T) {
	r := New(gaveUp(13).Input)
	r.Failures.Lost, r.Failures.Share = 2*worthSaving, 2*muchLost
	if got := adviseLost(Input{}, r); !r.Failures.Fatal || got != "" {
		t.Errorf("%+v: %s", r.Failures, got)
	}
	if r.Failures.Fatal = false; adviseLost(Input{}, r) == "" {
		t.Error("a run that went on is not told what it lost")
	}
}
