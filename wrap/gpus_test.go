package wrap

import (
	"errors"
	"fmt"
	"testing"

	"headroom/memory"
	"headroom/nvml"
)

func TestVisible(t *testing.T) {
	all := []nvml.GPU{{Index: 0, UUID: "GPU-aa11"}, {Index: 1, UUID: "GPU-bb22"}, {Index: 2, UUID: "GPU-bb33"}}
	for _, c := range []struct {
		value string
		set   bool
		want  string
	}{
		{"", false, "[0 1 2]"},
		{"", true, "[]"},
		{"-1", true, "[]"},
		{"2, 0", true, "[2 0]"},
		{"0,7,1", true, "[0]"},
		{"GPU-bb33,GPU-aa", true, "[2 0]"},
	} {
		got := []int{}
		for _, g := range visible(c.value, c.set, all) {
			got = append(got, g.Index)
		}
		if fmt.Sprint(got) != c.want {
			t.Errorf("%q: %v, want %s", c.value, got, c.want)
		}
	}
}

func TestTrace(t *testing.T) {
	const gib = memory.GiB
	looks := [][]nvml.GPU{
		{{Index: 0, Total: 80 * gib, Used: 3 * gib, Holders: []nvml.Holder{{PID: 9, Bytes: 3 * gib}}}},
		{{Index: 0, Total: 80 * gib, Used: 63 * gib, Holders: []nvml.Holder{{PID: 9, Bytes: 3 * gib}, {PID: 41, Bytes: 40 * gib}, {PID: 42, Bytes: 20 * gib}}}},
		nil,
		{{Index: 0, Total: 80 * gib, Used: 50 * gib, Holders: []nvml.Holder{{PID: 9, Bytes: 30 * gib}, {PID: 41, Bytes: 20 * gib}}}},
		{{Index: 0, Total: nvml.Unknown, Used: nvml.Unknown}},
	}
	trace := &gpuTrace{mine: func(pid int) bool { return pid > 40 }}
	trace.list = func() ([]nvml.GPU, error) {
		now := looks[0]
		looks = looks[1:]
		if now == nil {
			return nil, errors.New("no answer")
		}
		return now, nil
	}
	for range len(looks) {
		trace.sample()
	}
	if want := (GPU{Index: 0, Total: 80 * gib, Peak: 60 * gib, Foreign: 30 * gib, Before: 3 * gib}); len(trace.seen) != 1 || trace.seen[0] != want {
		t.Errorf("%+v, want %+v", trace.seen, want)
	}
	if drained([]nvml.GPU{{Holders: []nvml.Holder{{PID: 41}}}}, trace.mine) || !drained([]nvml.GPU{{Holders: []nvml.Holder{{PID: 9}}}}, trace.mine) {
		t.Error("drained")
	}
}
