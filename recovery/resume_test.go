package recovery

import (
	"testing"

	"headroom/memory"
)

// TestResumeRemembers checks that a new process of a run does not fail again where the last
// process failed, and that it still grows back.
func TestResumeRemembers(t *testing.T) {
	const gib = memory.GiB
	policy := Policy{Headroom: 0.08, GrowAfter: 2, Able: native}
	asked := Plan{Effective: 40, World: 1, Micro: 40}
	w := world{capacity: 24 * gib, base: 2 * gib, sample: gib / 2, foreign: between(3, 8, 12*gib)}
	before := drive(t, w, policy, asked, 5)
	learned := before.history.Learned(asked, "bf16")

	resume := func(p Plan, l Learned) *run {
		r := &run{world: w, policy: policy, history: NewHistory(p).Resume(l, "bf16")}
		for step := 6; step <= 11; step++ {
			r.step(t, step)
		}
		return r
	}
	other := learned
	other.Precision = ""
	for _, c := range []struct {
		name    string
		plan    Plan
		learned Learned
		want    string
	}{
		{"the same command continues with what fits, then grows back", asked, learned, "14×3 grow 40×3"},
		{"another micro-batch is tried", asked.WithMicro(20), learned, "20×6"},
		{"what another precision needed is not known of this one", asked, other, "40! empty cache 40! search 14×3 grow 40×3"},
		{"a checkpoint that says nothing", asked, Learned{}, "40! empty cache 40! search 14×3 grow 40×3"},
	} {
		if got := shorten(resume(c.plan, c.learned).trace); got != c.want {
			t.Errorf("%s:\n got %s\nwant %s", c.name, got, c.want)
		}
	}
}

// TestResumeRemembersTheHost checks that the ways to need less host memory that are in
// force stay in force in a new process, and that the process uses the next one when host
// memory runs out again.
func TestResumeRemembersTheHost(t *testing.T) {
	policy, plan := Policy{Host: []string{"a", "b"}}, Plan{Effective: 8, World: 1, Micro: 8}
	e := Event{OOM: &memory.Evidence{Host: true}}
	h, d := tell(policy, NewHistory(plan), e)
	if d.Remedy != EaseHost || d.Name != "a" || h.Eased() != 1 {
		t.Fatalf("%+v, %d", d, h.Eased())
	}
	h, d = tell(policy, NewHistory(plan).Resume(h.Learned(plan, ""), ""), e)
	if d.Name != "b" || h.Eased() != 2 {
		t.Errorf("%+v, %d", d, h.Eased())
	}
	if _, d = tell(policy, h, e); d.Remedy != Stop || d.Verdict.Cause != memory.Host {
		t.Errorf("%+v", d)
	}
}

func TestResumeSearchesOnce(t *testing.T) {
	auto := Plan{Effective: 64, World: 1}
	h := NewHistory(auto).Resume(Learned{Asked: 0, Micro: 27, Recompute: true}, "")
	if h.Plan.Micro != 27 || !h.Recomputing() {
		t.Errorf("resumed with micro-batch %d, recompute %v", h.Plan.Micro, h.Recomputing())
	}
}

// TestResumeVerdict checks what is done if resuming from a checkpoint takes more memory
// than training did: the same plan is tried once per checkpoint, then a smaller one, or the
// run stops if that would not help.
func TestResumeVerdict(t *testing.T) {
	full := memory.Stats{Capacity: 24 * memory.GiB, Reserved: 24 * memory.GiB, Allocated: 24 * memory.GiB}
	evidence := memory.Evidence{Resuming: true, Failure: memory.OutOfMemoryError{Requested: memory.GiB, Micro: 8, Phase: memory.PhaseForward, Stats: full}}
	step := Event{OOM: &evidence}
	loading := evidence
	loading.Failure.Phase, loading.Failure.Micro = memory.PhaseLoad, 0
	load := Event{Load: &loading}
	reached := func(step int) Event { return Event{Step: &Progress{Step: step}} }
	for _, c := range []struct {
		name   string
		policy Policy
		events []Event
		want   []Remedy
	}{
		{"in a step", Policy{Relaunches: 3}, []Event{step, step, step}, []Remedy{Relaunch, Shrink, Shrink}},
		{"in loading", Policy{Relaunches: 3}, []Event{load, load}, []Remedy{Relaunch, Stop}},
		{"once per checkpoint", Policy{Relaunches: 3}, []Event{reached(4), step, reached(8), step}, []Remedy{Continue, Relaunch, Continue, Relaunch}},
		{"not allowed", Policy{}, []Event{step}, []Remedy{Shrink}},
		{"not allowed in loading", Policy{}, []Event{load}, []Remedy{Stop}},
	} {
		h := NewHistory(Plan{Effective: 8, World: 1, Micro: 8})
		for i, e := range c.events {
			var d Decision
			if h, d = tell(c.policy, h, e); d.Remedy != c.want[i] || e.Step == nil && d.Verdict.Cause != memory.Resume {
				t.Errorf("%s, event %d: %+v, want %s", c.name, i+1, d, c.want[i])
			}
		}
	}
}
