package data

import (
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func epoch(o Order, n int64) []int {
	indices := make([]int, o.Len)
	for i := range indices {
		_, indices[i] = o.At(n*int64(o.Len) + int64(i))
	}
	return indices
}

func TestOrderIsAPermutationOfEveryEpoch(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := Order{Seed: rapid.Uint64().Draw(t, "seed"), Len: rapid.IntRange(1, 3000).Draw(t, "len")}
		n := rapid.Int64Range(0, 1<<40).Draw(t, "epoch")
		if e, _ := o.At(n * int64(o.Len)); e != n {
			t.Fatalf("first position of epoch %d is in epoch %d", n, e)
		}
		if e, _ := o.At((n+1)*int64(o.Len) - 1); e != n {
			t.Fatalf("last position of epoch %d is in epoch %d", n, e)
		}
		got := epoch(o, n)
		slices.Sort(got)
		for i, index := range got {
			if i != index {
				t.Fatalf("%+v epoch %d: index %d missing or twice", o, n, i)
			}
		}
	})
}

func TestOrderDiffersBetweenEpochsAndSeeds(t *testing.T) {
	a := epoch(Order{Seed: 1, Len: 100}, 0)
	for name, b := range map[string][]int{
		"the next epoch": epoch(Order{Seed: 1, Len: 100}, 1),
		"another seed":   epoch(Order{Seed: 2, Len: 100}, 0),
		"seed 0":         epoch(Order{Seed: 0, Len: 100}, 0),
	} {
		same := 0
		for i := range b {
			if a[i] == b[i] {
				same++
			}
		}
		// One sample of 100 is expected in the same place; 10 or more have a
		// probability below 1e-6.
		if same >= 10 {
			t.Errorf("%s: %d of 100 samples in the same place", name, same)
		}
	}
}

// TestOrderIsUniform checks that every sample appears at every place of an
// epoch about equally often. A weak Feistel network would leave a pattern in
// small sets, where its halves have few bits.
func TestOrderIsUniform(t *testing.T) {
	for _, size := range []int{2, 3, 5, 17} {
		const epochs = 4000
		counts := make([][]int, size)
		for i := range counts {
			counts[i] = make([]int, size)
		}
		for e := range int64(epochs) {
			for place, index := range epoch(Order{Seed: 7, Len: size}, e) {
				counts[place][index]++
			}
		}
		want := float64(epochs) / float64(size)
		var chi float64
		for _, row := range counts {
			for _, n := range row {
				chi += (float64(n) - want) * (float64(n) - want) / want
			}
		}
		// There are (size−1)² degrees of freedom. The limit is the mean of
		// chi-squared plus 5 standard deviations.
		freedom := float64((size - 1) * (size - 1))
		if limit := freedom + 5*1.4143*math.Sqrt(freedom); chi > limit {
			t.Errorf("%d samples: chi-squared %.1f, at most %.1f expected", size, chi, limit)
		}
	}
}

// TestOrderKnownAnswers checks that the order has not changed. It must never change,
// because a checkpoint holds only a position in it.
func TestOrderKnownAnswers(t *testing.T) {
	if got, want := epoch(Order{Seed: 1, Len: 10}, 0), []int{5, 9, 4, 8, 0, 1, 3, 6, 7, 2}; !slices.Equal(got, want) {
		t.Errorf("seed 1, epoch 0: %v, want %v", got, want)
	}
	if got, want := epoch(Order{Seed: 1, Len: 10}, 1), []int{2, 7, 5, 9, 1, 6, 3, 0, 8, 4}; !slices.Equal(got, want) {
		t.Errorf("seed 1, epoch 1: %v, want %v", got, want)
	}
	if e, i := (Order{Seed: 42, Len: 1_000_003}).At(123_456_789_012); e != 123456 || i != 817661 {
		t.Errorf("far out: epoch %d index %d, want 123456 and 817661", e, i)
	}
}

func BenchmarkOrder(b *testing.B) {
	o := Order{Seed: 1, Len: 1_000_003}
	for i := range int64(b.N) {
		o.At(i)
	}
}
