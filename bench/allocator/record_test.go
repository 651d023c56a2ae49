package main

import (
	"slices"
	"strings"
	"testing"

	"headroom/device/host"
	"headroom/memory"
	"headroom/model"
	"headroom/recovery"
)

const toyMicro = 3

func toySpec() model.Spec {
	return model.Spec{
		Kind: model.GPT, Layers: 3, Width: 24, Heads: 3, Context: 40, Vocab: 301,
		Optimizer: model.Optimizer{LR: 1e-3},
	}
}

func record(t *testing.T) *recording {
	t.Helper()
	r, err := newRecording(toySpec(), toyMicro)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

func TestSizesAreAffineInTheLength(t *testing.T) {
	r := record(t)
	all := make([]int, toySpec().Context)
	for i := range all {
		all[i] = i + 1
	}
	ops, err := r.ops(3, 40, all...)
	if err != nil {
		t.Fatal(err)
	}
	grow := slices.ContainsFunc(ops, func(o op) bool { return o.Each > 0 })
	stay := slices.ContainsFunc(ops, func(o op) bool { return o.Each == 0 && o.Fixed > 0 })
	if !grow || !stay {
		t.Errorf("tensors that grow: %v, that do not: %v; want both", grow, stay)
	}
}

// TestRecordingIsWhatTrainingAllocates checks that a trace that was recorded without computing
// anything reaches the same peak as real training.
func TestRecordingIsWhatTrainingAllocates(t *testing.T) {
	r := record(t)
	ops, err := r.ops(5, 40)
	if err != nil {
		t.Fatal(err)
	}
	for _, length := range []int{1, 17, 40} {
		dev, err := host.Open(host.Options{Capacity: memory.GiB})
		if err != nil {
			t.Fatal(err)
		}
		trainer, err := model.New(dev, toySpec(), &varying{length, toySpec().Vocab})
		if err != nil {
			t.Fatal(err)
		}
		report, err := trainer.Step(t.Context(), recovery.Plan{Effective: toyMicro, World: 1, Micro: toyMicro})
		if err != nil {
			t.Fatal(err)
		}
		trace := &trace{State: r.state, Slots: len(ops) / 2, Ops: ops, Lengths: []int{length}}
		if got, want := trace.peak(), report.Memory.Peak; got != want {
			t.Errorf("length %d: the trace peaks at %d bytes, the training at %d", length, got, want)
		}
		if err := trainer.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestStepsThatAreNotOneTrace(t *testing.T) {
	low := []event{{0, 8}, {1, 100}, {1, 0}, {0, 0}}
	change := func(at int, e event) []event {
		events := slices.Clone(low)
		events[at] = e
		return events
	}
	for name, c := range map[string]struct {
		high []event
		want string
	}{
		"shorter":        {low[:2], "4 operations at length 1 and 2 at 3"},
		"another order":  {change(2, event{0, 0}), "of tensor"},
		"not affine":     {change(1, event{1, 101}), "101 bytes of tensor 1, not 100"},
		"freed, not cut": {change(3, event{0, 7}), "7 bytes of tensor 0"},
	} {
		if _, err := line(low, c.high, 1, 3); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	ops, err := line(low, change(1, event{1, 104}), 1, 3)
	if err != nil || ops[1] != (op{Slot: 1, Each: 2, Fixed: 98}) {
		t.Errorf("%v, %v: want a line through 100 at 1 and 104 at 3", ops, err)
	}
	if err := follows(change(1, event{1, 103}), ops, 2); err == nil {
		t.Error("103 bytes are not on the line at 2")
	}
}
