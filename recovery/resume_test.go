package recovery

import (
	"testing"

	"headroom/memory"
)

// TestResumeRemembers holds that a new process of a run neither fails again
// where the last one failed nor forgets to grow back.
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
		{"the same command goes on with what fits, then grows back", asked, learned, "14×3 grow 40×3"},
		{"another micro-batch is tried", asked.WithMicro(20), learned, "20×6"},
		{"what another precision needed is not known of this one", asked, other, "40! empty cache 40! search 14×3 grow 40×3"},
		{"a checkpoint that says nothing", asked, Learned{}, "40! empty cache 40! search 14×3 grow 40×3"},
	} {
		if got := shorten(resume(c.plan, c.learned).trace); got != c.want {
			t.Errorf("%s:\n got %s\nwant %s", c.name, got, c.want)
		}
	}
}

func TestResumeSearchesOnce(t *testing.T) {
	auto := Plan{Effective: 64, World: 1}
	h := NewHistory(auto).Resume(Learned{Asked: 0, Micro: 27, Recompute: true}, "")
	if h.Plan.Micro != 27 || !h.Recomputing() {
		t.Errorf("resumed with micro-batch %d, recompute %v", h.Plan.Micro, h.Recomputing())
	}
}
