package recovery

import (
	"fmt"
	"strings"
	"testing"

	"headroom/memory"
	"headroom/search"
)

// with returns the memory after a step when the given amount is available.
func with(available memory.Bytes) memory.Stats {
	return memory.Stats{Capacity: 24 * memory.GiB, Free: available, Foreign: 24*memory.GiB - available}
}

// failed returns the event of a micro-batch running out of memory because of its size.
func failed(micro int) Event {
	return Event{OOM: &memory.Evidence{Failure: memory.OutOfMemoryError{Requested: 2 * memory.GiB, Micro: micro, Phase: memory.PhaseForward,
		Stats: memory.Stats{Capacity: 24 * memory.GiB, Reserved: 24 * memory.GiB, Allocated: 23 * memory.GiB}}}}
}

// tell has Decide answer an event, and applies the answer to the history.
func tell(p Policy, h History, e Event) (History, Decision) {
	d := Decide(p, h, e)
	return h.Apply(e, d), d
}

// TestProvenRoomIsTheLeast checks that the run grows back to a size as soon as the available
// memory reaches the smallest amount in which that size has run.
func TestProvenRoomIsTheLeast(t *testing.T) {
	p := Policy{GrowAfter: 1, Able: native}
	h := NewHistory(Plan{Effective: 64, World: 1, Micro: 64})
	h, _ = tell(p, h, Event{Step: &Progress{Step: 1, Memory: with(24 * memory.GiB)}})
	h, _ = tell(p, h, Event{Step: &Progress{Step: 2, Memory: with(20 * memory.GiB)}})
	shrunk := Decision{Remedy: Shrink, Plan: h.Plan.WithMicro(16)}
	h = h.Apply(Event{OOM: &memory.Evidence{Failure: memory.OutOfMemoryError{Stats: with(12 * memory.GiB)}}}, shrunk)
	_, d := tell(p, h, Event{Step: &Progress{Step: 3, Memory: with(20 * memory.GiB)}})
	if d.Remedy != Grow || d.Plan.Micro != 64 {
		t.Errorf("with 20 GiB, in which 64 has run: %s to %d", d.Remedy, d.Plan.Micro)
	}
}

// TestPatienceIsBounded checks that the waits between tries at growing back do not grow without
// limit.
func TestPatienceIsBounded(t *testing.T) {
	p := Policy{GrowAfter: 3, Able: native}
	h := NewHistory(Plan{Effective: 64, World: 1, Micro: 64})
	h = h.Apply(failed(64), Decision{Remedy: Shrink, Plan: h.Plan.WithMicro(16), Verdict: &memory.Verdict{Cause: memory.Spike}})
	step, longest := 0, 0
	for range 80 {
		waited := 0
		for d := (Decision{}); d.Remedy != Grow; waited++ {
			if waited > 3<<patienceLimit {
				t.Fatalf("no try of growing back within %d steps", waited)
			}
			step++
			h, d = tell(p, h, Event{Step: &Progress{Step: step, Memory: with(24 * memory.GiB)}})
		}
		longest = max(longest, waited)
		h, _ = tell(p, h, failed(64))
		h.room = 0
	}
	if longest != 3<<patienceLimit {
		t.Errorf("waited %d steps at most, want %d", longest, 3<<patienceLimit)
	}
}

// TestSettled checks that a plan that was grown to is settled once it has run.
func TestSettled(t *testing.T) {
	h := NewHistory(Plan{Effective: 64, World: 1, Micro: 64})
	h = h.Apply(failed(64), Decision{Remedy: Shrink, Plan: h.Plan.WithMicro(16)})
	h = h.Apply(Event{Step: &Progress{Step: 1}}, Decision{Remedy: Grow, Plan: h.Plan.WithMicro(64)})
	if h.Settled() {
		t.Error("settled before it has run")
	}
	if h = h.Apply(Event{Step: &Progress{Step: 2}}, Decision{Remedy: Continue, Plan: h.Plan}); !h.Settled() {
		t.Error("not settled after it has run")
	}
}

// TestNoGrowthInTheDark checks that the plan does not grow back if the body knows nothing about
// the memory.
func TestNoGrowthInTheDark(t *testing.T) {
	p := Policy{GrowAfter: 1}
	h := NewHistory(Plan{Effective: 64, World: 1, Micro: 64})
	h = h.Apply(failed(64), Decision{Remedy: Shrink, Plan: h.Plan.WithMicro(16), Verdict: &memory.Verdict{Cause: memory.Spike}})
	if _, d := tell(p, h, Event{Step: &Progress{Step: 500}}); d.Remedy != Continue || d.Plan.Micro != 16 {
		t.Errorf("%+v", d)
	}
}

// TestCheckpointsAreProgress checks the decisions for a body that reports only checkpoints. After
// each newer checkpoint, the waits must be counted from 0 again. The reasons must name no step
// other than that of the newest checkpoint.
func TestCheckpointsAreProgress(t *testing.T) {
	p := Policy{Waits: 1, GrowAfter: 100}
	h := NewHistory(Plan{Effective: 64, World: 1, Micro: 1})
	taken := Event{OOM: &memory.Evidence{Failure: memory.OutOfMemoryError{Requested: memory.GiB, Micro: 1, Phase: memory.PhaseForward, Stats: with(0)}}}
	for _, c := range []struct {
		checkpoint int
		want       Remedy
		says       string
	}{
		{0, Wait, "wait for other processes to release memory (wait 1 of 1)"},
		{0, Stop, "out of memory in the training; other processes"},
		{400, Wait, "wait for other processes to release memory (wait 1 of 1)"},
		{0, Stop, "out of memory in the training after step 400; other processes"},
	} {
		if c.checkpoint > 0 {
			h, _ = tell(p, h, Event{Step: &Progress{Step: c.checkpoint}})
		}
		var d Decision
		if h, d = tell(p, h, taken); d.Remedy != c.want || !strings.HasPrefix(d.Reason, c.says) {
			t.Errorf("%s: %s, want %s: %s", d.Remedy, d.Reason, c.want, c.says)
		}
	}
	if h.quiet != 0 || h.Finished != 400 {
		t.Errorf("%d quiet steps after a failure, %d finished", h.quiet, h.Finished)
	}
	if h, _ = tell(p, h, Event{Step: &Progress{Step: 650}}); h.quiet != 250 {
		t.Errorf("%d quiet steps between the checkpoints of steps 400 and 650", h.quiet)
	}
}

// TestLoad checks what is decided if memory runs out while the model is being built.
func TestLoad(t *testing.T) {
	h := NewHistory(Plan{Effective: 64, World: 1, Micro: 64})
	load := func(s memory.Stats) Event {
		return Event{Load: &memory.Evidence{Failure: memory.OutOfMemoryError{Requested: 4 * memory.GiB, Phase: memory.PhaseLoad, Stats: s}}}
	}
	p := Policy{Waits: 2, Relaunches: 2, Recompute: true, Able: native}
	taken := load(with(2 * memory.GiB))
	var got []string
	for range 3 {
		var d Decision
		h, d = tell(p, h, taken)
		got = append(got, string(d.Remedy))
	}
	if fmt.Sprint(got) != "[wait wait stop]" {
		t.Errorf("other processes hold the memory: %v", got)
	}
	if h.Plan.Micro != 64 {
		t.Errorf("the micro-batch became %d", h.Plan.Micro)
	}
	h, _ = tell(p, h, Event{Step: &Progress{Step: 1}})
	if _, d := tell(p, h, taken); d.Remedy != Wait {
		t.Errorf("after a step: %s", d.Remedy)
	}
	if _, d := tell(p, h, load(memory.Stats{Capacity: 2 * memory.GiB, Free: 2 * memory.GiB})); d.Remedy != Stop || d.Verdict.Cause != memory.Model || d.Hint != helpModel {
		t.Errorf("a device too small: %+v", d)
	}
	if _, d := tell(p, h, load(memory.Stats{})); d.Remedy != Stop || d.Verdict.Cause != memory.Unknown {
		t.Errorf("a device that tells nothing: %+v", d)
	}
}

// TestEvaluation checks that running out of memory in evaluation shrinks only the evaluation
// batch.
func TestEvaluation(t *testing.T) {
	plan := Plan{Effective: 64, World: 1, Micro: 64, Eval: 10}
	e := failed(0)
	e.OOM.Failure.Phase = memory.PhaseEval
	able := native
	able.Eval = true
	p := Policy{Able: able, Recompute: true}
	h := NewHistory(plan)
	h.grown = 32 // a training batch that has grown is not to blame
	var got []string
	for range 5 {
		var d Decision
		h, d = tell(p, h, e)
		got = append(got, fmt.Sprintf("%s %d", d.Remedy, h.Plan.Eval))
	}
	if want := "[empty cache 10 shrink eval 5 shrink eval 2 shrink eval 1 stop 1]"; fmt.Sprint(got) != want {
		t.Errorf("got %v, want %s", got, want)
	}
	if h.Plan.Micro != 64 {
		t.Errorf("the training's micro-batch became %d", h.Plan.Micro)
	}
	if l := h.Learned(plan, ""); l.Eval != 1 || NewHistory(plan).Resume(l, "").Plan.Eval != 1 {
		t.Errorf("the next process begins with %+v", l)
	}
	p.Able.Eval, h.Plan.Eval = false, 10
	if _, d := tell(p, h, e); d.Remedy != Stop || d.Verdict.Cause != memory.Model || d.Hint != "a smaller evaluation batch, a smaller model, or a device with more memory" {
		t.Errorf("a body that cannot set it: %+v", d)
	}
}

// TestGeneration checks that no batch is changed if memory runs out in generation outside
// evaluation.
func TestGeneration(t *testing.T) {
	e := failed(0)
	e.OOM.Failure.Phase = memory.PhaseGenerate
	h := NewHistory(Plan{Effective: 64, World: 1, Micro: 64, Eval: 10})
	h.grown = 32
	_, d := tell(Policy{Able: Able{Eval: true}}, h, e)
	if d.Remedy != Stop || d.Plan != h.Plan || d.Verdict.Cause != memory.Model || d.Hint != "fewer or shorter samples generated at once, a smaller model, or a device with more memory" {
		t.Errorf("%+v", d)
	}
}

// TestHeadroomThatCannotBeKept checks that the reason says that the headroom cannot be kept, and
// how much memory is left unused.
func TestHeadroomThatCannotBeKept(t *testing.T) {
	found := Searched{Stats: with(24 * memory.GiB), Result: search.Result{Fits: 16, Fails: 17, Probes: []search.Probe{
		{N: 1, Peak: 18 * memory.GiB, Fits: true}, {N: 17, Peak: 25 * memory.GiB}, {N: 16, Peak: 23 * memory.GiB, Fits: true}}}}
	h := NewHistory(Plan{Effective: 64, World: 1})
	_, d := tell(Policy{Headroom: 0.5, Able: native}, h, Event{Search: &found})
	if want := "no size leaves at least 50 % of the memory unused, and 1, the smallest allowed, leaves the most: 25 %"; d.Plan.Micro != 1 || !strings.HasSuffix(d.Reason, want) {
		t.Errorf("micro-batch %d: %s", d.Plan.Micro, d.Reason)
	}
	found.Result.Recommended = 9
	_, d = tell(Policy{Headroom: 0.08, Able: native}, h, Event{Search: &found})
	if want := "sizes up to 9 leave at least 8 % of the memory unused"; d.Plan.Micro != 9 || !strings.HasSuffix(d.Reason, want) {
		t.Errorf("micro-batch %d: %s", d.Plan.Micro, d.Reason)
	}
}

// TestHelpsNamesWhatIsNotAllowed checks that a hint advises the user to allow a remedy that is
// off, and to raise a limit only if its remedy is on.
func TestHelpsNamesWhatIsNotAllowed(t *testing.T) {
	e := Event{Load: &memory.Evidence{Failure: memory.OutOfMemoryError{Requested: memory.GiB, Phase: memory.PhaseLoad, Stats: with(0)}}}
	h := NewHistory(Plan{Effective: 64, World: 1, Micro: 64})
	if _, d := tell(Policy{}, h, e); d.Hint != "stop the other processes, choose another device, or allow waiting for them with allow: [wait] in the config's memory section" {
		t.Error(d.Hint)
	}
	h.waits = 3
	if _, d := tell(Policy{Waits: 3}, h, e); d.Hint != "stop the other processes, choose another device, or allow more waiting with memory.waits" {
		t.Error(d.Hint)
	}
}

// TestAlike checks which failures of smaller micro-batches count as the same, and that a finished step
// ends the count.
func TestAlike(t *testing.T) {
	const gib = memory.GiB
	oom := func(requested, allocated memory.Bytes) memory.OutOfMemoryError {
		return memory.OutOfMemoryError{Requested: requested, Stats: memory.Stats{Allocated: allocated}}
	}
	for _, c := range []struct {
		name  string
		micro int
		then  memory.OutOfMemoryError
		want  int
	}{
		{"smaller, and the same", 32, oom(8*gib, 20*gib), 1},
		{"an eighth of the request less allocated", 32, oom(8*gib, 19*gib), 1},
		{"more than an eighth less", 32, oom(8*gib, 19*gib-1), 0},
		{"more than an eighth more", 32, oom(8*gib, 21*gib+1), 0},
		{"another request", 32, oom(8*gib-1, 20*gib), 0},
		{"the same micro-batch again", 64, oom(8*gib, 20*gib), 0},
		{"a larger one", 128, oom(8*gib, 20*gib), 0},
		{"an unknown request", 32, oom(0, 20*gib), 0},
	} {
		first := fixed{}.with(64, oom(8*gib, 20*gib))
		if got := first.with(c.micro, c.then).alike; got != c.want {
			t.Errorf("%s: %d alike, want %d", c.name, got, c.want)
		}
	}
	if first := (fixed{}.with(64, oom(0, 20*gib))).with(32, oom(0, 20*gib)); first.alike != 0 {
		t.Errorf("requests of unknown size are alike")
	}
	h := History{fixed: fixed{micro: 32, requested: gib, alike: 1}}
	if h = h.finished(Progress{Step: 1}); h.fixed != (fixed{}) {
		t.Errorf("after a finished step: %+v", h.fixed)
	}
}
