package report

import (
	"strings"
	"testing"

	"headroom/recovery"
	"headroom/runs"
)

func TestAccountingOfAWholeRun(t *testing.T) {
	a := New(night().Input).Accounting
	if a.State != Held || a.Sum != "200 steps × 64 = 12,800 samples" || a.Samples != 12800 || len(a.Problems) > 0 {
		t.Errorf("got %+v", a)
	}
}

// TestAccountingFindsTampering checks that any change to the records of a sound run is
// found.
func TestAccountingFindsTampering(t *testing.T) {
	tests := []struct {
		name   string
		change func(in *Input)
		state  Kept
		want   string // must be among the problems
	}{
		{"a sample too few", func(in *Input) { in.Steps[99].Samples = 63 }, Broken, "step 100 took 63 samples, not 64"},
		{"a sample too many", func(in *Input) { in.Steps[0].Samples = 65 }, Broken, "step 1 took 65 samples, not 64"},
		{"two that cancel out", func(in *Input) { in.Steps[10].Samples, in.Steps[11].Samples = 63, 65 }, Broken, "step 11 took 63 samples, not 64"},
		{"micro-batches that fall short", func(in *Input) { in.Steps[4].Splits = []int{22, 21, 20} }, Broken, "step 5: the micro-batches add up to 63 samples, but the step reports 64"},
		{"samples skipped", func(in *Input) { in.Steps[50].First++ }, Broken, "step 51 began at sample 3201, but the previous step ended at 3200"},
		{"a step made twice", func(in *Input) {
			in.Steps = append(in.Steps[:60:60], append([]runs.StepReport{in.Steps[59]}, in.Steps[60:]...)...)
		}, Broken, "the step number went back 1 time, but the journal records only 1 attempt"},
		{"another effective batch", func(in *Input) { in.Effective = 128 }, Broken, "asked for 64 samples per step, but 128 are configured"},
		{"a plan of another size", func(in *Input) {
			in.Entries[2].Plan = &recovery.Plan{Effective: 64, World: 1, Micro: 64}
			in.Entries = append(in.Entries, runs.Entry{Kind: runs.KindPlan, Step: 200, Plan: &recovery.Plan{Effective: 32, World: 1, Micro: 8}})
		}, Broken, "at step 200 the plan asked for 32 samples per step, but 64 are configured"},
		{"steps missing", func(in *Input) {
			in.Steps = append(in.Steps[:30:30], in.Steps[33:]...)
		}, Unchecked, "steps 31 to 33 not recorded"},
		{"the end missing", func(in *Input) { in.Steps = in.Steps[:199] }, Unchecked, "step 200 not recorded, although the journal goes further"},
		{"no metrics", func(in *Input) { in.Steps = nil }, Unchecked, ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			in := night().Input
			test.change(&in)
			r := New(in)
			problems := strings.Join(r.Accounting.Problems, "\n")
			if r.Accounting.State != test.state || !strings.Contains(problems, test.want) {
				t.Fatalf("%s with\n%s\nwant %s with %q", r.Accounting.State, problems, test.state, test.want)
			}
			if broken := test.state == Broken; broken != (r.Outcome.Tone == Bad) || broken != strings.Contains(r.Outcome.Title, "NOT kept") || broken != strings.Contains(html(t, r), "The effective batch was not kept") {
				t.Errorf("tone %s: a broken account is not told loudly, or a sound one is", r.Outcome.Tone)
			}
		})
	}
}

// TestAccountingOfStepsMadeAgain checks the accounting of a run that was killed and
// then repeated the steps since its checkpoint.
func TestAccountingOfStepsMadeAgain(t *testing.T) {
	d := newDiary("killed", 100)
	d.plan.Micro = 16
	d.begin()
	d.walk(70, 0)
	d.step = 50
	d.begin()
	d.walk(100, 0)
	a := New(d.Input).Accounting
	if a.State != Held || a.Redone != 20 || a.Sum != "100 steps × 64 = 6,400 samples" {
		t.Errorf("got %+v", a)
	}
}

func TestAccountingOverRanks(t *testing.T) {
	d := newDiary("ranks", 3)
	d.plan = recovery.Plan{Effective: 64, World: 3, Micro: 8}
	d.begin()
	d.walk(3, 0)
	if a := New(d.Input).Accounting; a.State != Held {
		t.Errorf("the micro-batches of one rank: %+v", a)
	}
	d.Steps[1].Splits[0]++
	if a := New(d.Input).Accounting; a.State != Broken {
		t.Errorf("a share that no rank has: %+v", a)
	}
}

func TestAccountingLimitsItsProblems(t *testing.T) {
	in := night().Input
	for i := range in.Steps {
		in.Steps[i].Samples = 60
	}
	a := New(in).Accounting
	if len(a.Problems) != 12 || a.More < 300 || a.Sum != "200 steps × 64 = 12,800 samples, but 12,000 are recorded" {
		t.Errorf("%d problems and %d more, %s", len(a.Problems), a.More, a.Sum)
	}
}
