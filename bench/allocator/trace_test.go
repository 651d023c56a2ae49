package main

import (
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"headroom/memory"
)

// small returns a trace with two tensors per step and one more in the state. The tensor allocated
// second is freed first.
func small(lengths ...int) *trace {
	t := &trace{
		State:   []memory.Bytes{1000},
		Slots:   2,
		Ops:     []op{{Slot: 0, Each: 1 << 20}, {Slot: 1, Fixed: 514}, {Slot: 1}, {Slot: 0}},
		Lengths: lengths,
	}
	t.Peak = t.peak()
	return t
}

func TestLengthsAreDrawnBetweenTheEnds(t *testing.T) {
	a := drawLengths(1, 1000, 5, 9)
	if slices.Min(a) != 5 || slices.Max(a) != 9 {
		t.Errorf("between %d and %d, want 5 and 9", slices.Min(a), slices.Max(a))
	}
	if !slices.Equal(a, drawLengths(1, 1000, 5, 9)) || slices.Equal(a, drawLengths(2, 1000, 5, 9)) {
		t.Error("lengths are not a function of the seed")
	}
}

func TestPeakIsOfRoundedSizes(t *testing.T) {
	if got, want := small(1, 3, 2).peak(), memory.Bytes(1024+3<<20+1024); got != want {
		t.Errorf("%d bytes, want %d", got, want)
	}
}

func TestTraceComesBack(t *testing.T) {
	path := filepath.Join(t.TempDir(), "trace.json")
	want := small(1, 2)
	if err := want.write(path); err != nil {
		t.Fatal(err)
	}
	got, err := readTrace(path)
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%v, %v", got, err)
	}
}

func TestTracesThatMakeNoSense(t *testing.T) {
	for want, spoil := range map[string]func(*trace){
		"no lengths":            func(t *trace) { t.Lengths = nil },
		"state 0 holds 0 bytes": func(t *trace) { t.State[0] = 0 },
		"-1 tensors with 4":     func(t *trace) { t.Slots = -1 },
		"5 tensors with 4":      func(t *trace) { t.Slots = 5 },
		"op 0 is on tensor 2":   func(t *trace) { t.Ops[0].Slot = 2 },
		"op 1 is on tensor -1":  func(t *trace) { t.Ops[1].Slot = -1 },
		"op 1: tensor 0":        func(t *trace) { t.Ops[1].Slot = 0 },
		"op 0: tensor 1":        func(t *trace) { t.Ops = t.Ops[2:] },
		"is not freed":          func(t *trace) { t.Ops = t.Ops[:3] },
		"0 bytes at length 0":   func(t *trace) { t.Lengths = []int{0} },
	} {
		bad := small(1)
		spoil(bad)
		if err := bad.validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	if err := small(1).validate(); err != nil {
		t.Error(err)
	}
}
