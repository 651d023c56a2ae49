package recovery

import (
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestSplits(t *testing.T) {
	for _, c := range []struct {
		plan Plan
		rank int
		want []int
	}{
		{Plan{Effective: 64, World: 1, Micro: 64}, 0, []int{64}},
		{Plan{Effective: 64, World: 1, Micro: 27}, 0, []int{22, 21, 21}},
		{Plan{Effective: 64, World: 1, Micro: 100}, 0, []int{64}},
		{Plan{Effective: 10, World: 4, Micro: 2}, 0, []int{2, 1}},
		{Plan{Effective: 10, World: 4, Micro: 2}, 3, []int{1, 1}},
		{Plan{Effective: 3, World: 2, Micro: 1}, 1, []int{1, 0}},
		{Plan{Effective: 60, World: 1, Micro: 25, Uniform: true}, 0, []int{20, 20, 20}},
		{Plan{Effective: 7, World: 1, Micro: 3, Uniform: true}, 0, []int{1, 1, 1, 1, 1, 1, 1}},
		{Plan{Effective: 64, World: 1}, 0, []int{}},
		{Plan{Effective: 96, World: 2, Micro: 24, Uniform: true, Common: 32}, 1, []int{16, 16, 16}},
		{Plan{Effective: 96, World: 2, Micro: 12, Uniform: true, Common: 32}, 1, []int{8, 8, 8, 8, 8, 8}},
	} {
		if got := c.plan.Splits(c.rank); !slices.Equal(got, c.want) {
			t.Errorf("%+v rank %d: %v, want %v", c.plan, c.rank, got, c.want)
		}
	}
}

func TestSplitsSumExactly(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := Plan{World: rapid.IntRange(1, 16).Draw(t, "world"), Uniform: rapid.Bool().Draw(t, "uniform")}
		p.Effective = rapid.IntRange(p.World, 600).Draw(t, "effective")
		if p.Uniform {
			p.Effective = p.Effective / p.World * p.World
		}
		p.Micro = rapid.IntRange(1, 700).Draw(t, "micro")
		if err := p.Validate(); err != nil {
			t.Fatalf("%+v: %v", p, err)
		}
		all := 0
		for rank := range p.World {
			splits := p.Splits(rank)
			sum := 0
			for _, n := range splits {
				sum += n
			}
			all += sum
			small, large := slices.Min(splits), slices.Max(splits)
			if sum != p.Share(rank) || large > p.Micro || large-small > 1 || len(splits) != p.Accumulation() {
				t.Fatalf("%+v rank %d: splits %v", p, rank, splits)
			}
			if p.Uniform && small != large {
				t.Fatalf("%+v rank %d: uneven splits %v", p, rank, splits)
			}
		}
		if all != p.Effective {
			t.Fatalf("%+v: %d samples over all ranks", p, all)
		}
	})
}

func TestPlanValidateSaysAllAtOnce(t *testing.T) {
	err := Plan{Effective: 0, World: 0, Micro: -1}.Validate()
	for _, want := range []string{"effective batch 0", "world size 0", "micro-batch -1"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: does not say %q", err, want)
		}
	}
	if err := (Plan{Effective: 10, World: 4, Micro: 2, Uniform: true}).Validate(); err == nil {
		t.Error("a uniform plan over ranks that do not divide it was accepted")
	}
	for _, p := range []Plan{{Common: 16}, {Common: 24, Uniform: true}, {Common: 3, Uniform: true}, {Common: -2, Uniform: true}} {
		p.Effective, p.World, p.Micro = 64, 2, 2
		if err := p.Validate(); err == nil || !strings.Contains(err.Error(), "common divisor") {
			t.Errorf("%+v: %v", p, err)
		}
	}
}

func TestBelow(t *testing.T) {
	for _, c := range []struct {
		plan  Plan
		micro int
		want  int
	}{
		{Plan{Effective: 64, World: 1}, 64, 63},
		{Plan{Effective: 64, World: 1}, 1000, 64},
		{Plan{Effective: 64, World: 1}, 1, 0},
		{Plan{Effective: 60, World: 1, Uniform: true}, 60, 30},
		{Plan{Effective: 60, World: 1, Uniform: true}, 14, 12},
		{Plan{Effective: 60, World: 4, Uniform: true}, 15, 5},
		{Plan{Effective: 997, World: 1, Uniform: true}, 997, 1},
		{Plan{Effective: 997, World: 1, Uniform: true}, 1, 0},
		{Plan{Effective: 96, World: 1, Uniform: true, Common: 16}, 96, 16},
		{Plan{Effective: 96, World: 2, Uniform: true, Common: 32}, 16, 8},
	} {
		if got := c.plan.Below(c.micro); got != c.want {
			t.Errorf("%+v below %d: %d, want %d", c.plan, c.micro, got, c.want)
		}
	}
}

func TestWithin(t *testing.T) {
	for _, c := range []struct {
		plan           Plan
		n, least, want int
	}{
		{Plan{Effective: 64, World: 1}, 27, 1, 27},
		{Plan{Effective: 64, World: 1}, 2, 4, 4},
		{Plan{Effective: 64, World: 1}, 100, 1, 64},
		{Plan{Effective: 60, World: 1, Uniform: true}, 29, 1, 20},
		{Plan{Effective: 60, World: 1, Uniform: true}, 9, 7, 10},
		{Plan{Effective: 997, World: 1, Uniform: true}, 996, 3, 997},
	} {
		if got := c.plan.within(c.n, c.least); got != c.want {
			t.Errorf("%+v within %d, at least %d: %d, want %d", c.plan, c.n, c.least, got, c.want)
		}
	}
}

func TestPlanAsText(t *testing.T) {
	for _, c := range []struct {
		plan Plan
		want string
	}{
		{Plan{Effective: 80, World: 1, Micro: 27}, "micro-batch 27 × 3, effective 80"},
		{Plan{Effective: 96, World: 2, Micro: 12, Uniform: true, Common: 32}, "micro-batch 8 × up to 6 × 2 ranks, effective up to 96"},
	} {
		if got := c.plan.String(); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}
