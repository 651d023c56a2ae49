package report

import (
	"fmt"
	"math"
	"time"

	"headroom/memory"
	"headroom/recovery"
	"headroom/runs"
	"headroom/search"
)

const effective = 64

// diary writes a journal and metrics the way a run does, on a clock of its own.
type diary struct {
	Input
	now     time.Time
	attempt int
	step    int
	plan    recovery.Plan
}

func newDiary(name string, planned int) *diary {
	return &diary{
		Input: Input{Name: name, Planned: planned, Device: "NVIDIA H200"},
		now:   time.Date(2026, 3, 2, 22, 14, 5, 0, time.UTC),
		plan:  recovery.Plan{Effective: effective, World: 1, Micro: 64},
	}
}

func (d *diary) entry(e runs.Entry) {
	d.now = d.now.Add(time.Duration(e.Seconds * float64(time.Second)))
	e.Time, e.Attempt, e.Step = d.now, d.attempt, d.step
	d.Entries = append(d.Entries, e)
}

func (d *diary) begin() {
	d.attempt++
	if d.attempt == 1 {
		d.entry(runs.Entry{Kind: runs.KindRun, Text: "a run of " + d.Name})
	}
	d.entry(runs.Entry{Kind: runs.KindAttempt, Text: fmt.Sprintf("attempt %d from step %d", d.attempt, d.step)})
	plan := d.plan
	d.entry(runs.Entry{Kind: runs.KindPlan, Plan: &plan, Text: plan.String()})
}

// stats returns the memory of a device of 24 GiB, on which each sample takes 0.78 GiB on
// top of a base of about 1.9 GiB.
func stats(micro int, foreign memory.Bytes) memory.Stats {
	peak := 1900*memory.MiB + memory.Bytes(0.78*float64(micro)*float64(memory.GiB))
	reserved := peak + 300*memory.MiB
	return memory.Stats{
		Capacity: 24 * memory.GiB, Reserved: reserved, Allocated: 2 * memory.GiB, Peak: peak, PeakReserved: reserved,
		Foreign: foreign, Free: max(0, 24*memory.GiB-foreign-reserved),
	}
}

func (d *diary) finish(foreign memory.Bytes) {
	d.step++
	splits := d.plan.Splits(0)
	wobble := math.Sin(float64(d.step)*1.7) + math.Sin(float64(d.step)*0.37)
	s := runs.StepReport{
		Step: d.step, First: int64(d.step-1) * effective, Samples: effective, Splits: splits,
		Loss: 4.1*math.Exp(-float64(d.step)/90) + 1.6 + 0.05*wobble, LR: 3e-4 * min(1, float64(d.step)/40),
		Memory: stats(splits[0], foreign), Seconds: 0.9 + 0.12*float64(len(splits)) + 0.02*wobble,
	}
	s.Memory.Peak += memory.Bytes(wobble * float64(60*memory.MiB))
	d.Steps = append(d.Steps, s)
	d.now = d.now.Add(time.Duration(s.Seconds * float64(time.Second)))
}

func (d *diary) oom(foreign memory.Bytes, cause memory.Cause, why string) *memory.Verdict {
	s := stats(d.plan.Largest(), foreign)
	s.Allocated, s.Free = 21*memory.GiB-foreign, 700*memory.MiB
	oom := memory.OutOfMemoryError{Requested: 4 * memory.GiB, Stats: s, Phase: memory.PhaseForward, Micro: d.plan.Largest()}
	v := &memory.Verdict{Cause: cause, Why: why}
	d.entry(runs.Entry{Kind: runs.KindOOM, OOM: &oom, Verdict: v, Text: oom.Error(), Seconds: 0.6})
	return v
}

// briefly records a decision whose reason is brief, and then the verdict.
func (d *diary) briefly(r recovery.Remedy, micro int, v *memory.Verdict, brief string) {
	d.decide(r, micro, v, brief+": "+v.Why)
	d.Entries[len(d.Entries)-1].Decision.Brief = brief
}

func (d *diary) decide(r recovery.Remedy, micro int, v *memory.Verdict, reason string) {
	plan := d.plan.WithMicro(micro)
	d.entry(runs.Entry{Kind: runs.KindDecision, Text: reason, Decision: &recovery.Decision{Remedy: r, Plan: plan, Verdict: v, Reason: reason}})
	if r == recovery.Shrink || r == recovery.Grow || r == recovery.Continue {
		d.plan = plan
	}
}

func (d *diary) checkpoint() {
	d.entry(runs.Entry{Kind: runs.KindCheckpoint, Text: fmt.Sprintf("checkpoint of step %d", d.step), Seconds: 0.8})
}

// night returns a whole run. A micro-batch of 64 samples does not fit, and a search finds
// 27. From step 80 to step 120, another process takes up some of the memory. Then the
// micro-batch grows back.
func night() *diary {
	d := newDiary("gpt-owt", 200)
	d.begin()
	v := d.oom(0, memory.Batch, "4 GiB asked for at micro-batch 64 in forward, 700 MiB free")
	d.decide(recovery.EmptyCache, 64, v, "empty the cache and run step 1 again with micro-batch 64")
	d.entry(runs.Entry{Kind: runs.KindRemedy, Text: "emptying the cache gave back 3.1 GiB", Seconds: 0.1})
	v = d.oom(0, memory.Batch, "4 GiB asked for at micro-batch 64 in forward, 700 MiB free")
	d.decide(recovery.Search, 63, v, "search for the largest micro-batch below 64 that fits")
	for _, p := range []search.Probe{{N: 63}, {N: 31}, {N: 15, Fits: true}, {N: 28, Fits: true}, {N: 27, Fits: true}} {
		d.entry(runs.Entry{Kind: runs.KindProbe, Probe: &p, Seconds: 1.2, Text: "probe"})
	}
	d.entry(runs.Entry{Kind: runs.KindSearch, Search: &search.Result{Fits: 28, Recommended: 27}, Text: "the search found 28"})
	d.decide(recovery.Shrink, 22, v, "micro-batch 64 → 22: 28 fits in 24 GiB and 22 leaves 10 % of it unused; accumulation 1 → 3 keeps the effective batch at 64")
	d.walk(80, 0)
	d.squeeze()
	d.walk(120, 9*memory.GiB)
	d.decide(recovery.Grow, 22, nil, "micro-batch 13 → 22: 24 GiB is available again, up from 15 GiB when the micro-batch was reduced; accumulation 5 → 3 keeps the effective batch at 64")
	d.walk(200, 0)
	d.entry(runs.Entry{Kind: runs.KindDone, Text: "done: 200 steps, 4 out-of-memory failures survived"})
	return d
}

func (d *diary) squeeze() {
	why := "4 GiB asked for at micro-batch 22 in forward, 700 MiB free, and other processes have taken 9 GiB since the attempt began (they now hold 9 GiB of 24 GiB)"
	v := d.oom(9*memory.GiB, memory.Foreign, why)
	d.briefly(recovery.EmptyCache, d.plan.Micro, v, "empty the cache and run step 81 again with micro-batch 22")
	v = d.oom(9*memory.GiB, memory.Foreign, why)
	d.decide(recovery.Shrink, 13, v, "micro-batch 22 → 13; accumulation 3 → 5 keeps the effective batch at 64")
}

func (d *diary) walk(to int, foreign memory.Bytes) {
	for d.step < to {
		d.finish(foreign)
		if d.step%50 == 0 {
			d.checkpoint()
		}
	}
}
