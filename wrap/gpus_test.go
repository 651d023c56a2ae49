package wrap

import (
	"context"
	"errors"
	"maps"
	"testing"
	"time"

	"headroom/memory"
	"headroom/nvml"
	"headroom/wrap/command"
)

func TestTrace(t *testing.T) {
	const gib = memory.GiB
	looks := [][]nvml.GPU{
		{{Index: 0, Total: 80 * gib, Used: 3 * gib, Holders: []nvml.Holder{{PID: 9, Bytes: 3 * gib}}}},
		{{Index: 0, Total: 80 * gib, Used: 63 * gib, Holders: []nvml.Holder{{PID: 9, Bytes: 3 * gib}, {PID: 41, Bytes: 40 * gib}, {PID: 42, Bytes: 20 * gib}}}},
		nil,
		{{Index: 0, Total: 80 * gib, Used: 50 * gib, Holders: []nvml.Holder{{PID: 9, Bytes: 30 * gib}, {PID: 41, Bytes: 20 * gib}}}},
		{{Index: 0, Total: nvml.Unknown, Used: nvml.Unknown}},
	}
	trace := &gpuTrace{own: map[int]bool{}, mine: func(pid int) bool { return pid > 40 }}
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
	if want := (command.GPU{Index: 0, Total: 80 * gib, Peak: 60 * gib, Foreign: 30 * gib, Before: 3 * gib}); len(trace.seen) != 1 || trace.seen[0] != want {
		t.Errorf("%+v, want %+v", trace.seen, want)
	}
	if !maps.Equal(trace.own, map[int]bool{41: true, 42: true}) {
		t.Errorf("its own processes: %v", trace.own)
	}
}

// TestDrain checks how many times drain looks at a GPU before it returns, and which
// processes it reports. The cases simulate what the GPU holds at each look after the end
// of a command. used is in GiB. If own is set, one of the command's processes is still
// among the holders. Other processes held 3 GiB when the command was started.
func TestDrain(t *testing.T) {
	const gib = memory.GiB
	type look struct {
		used memory.Bytes
		own  bool
	}
	for _, c := range []struct {
		name  string
		looks []look // the last one repeats
		want  int    // number of looks until drain returns
		stuck bool
	}{
		{"at once", []look{{3, false}}, 1, false},
		{"the driver takes a moment", []look{{60, true}, {40, true}, {20, false}, {3, false}}, 4, false},
		{"somebody else came", []look{{33, false}, {33, false}}, 2, false},
		{"a process that cannot be killed", []look{{60, true}}, 120, true},
	} {
		looked := 0
		trace := &gpuTrace{own: map[int]bool{41: true}, seen: []command.GPU{{Index: 0, Before: 3 * gib}}}
		trace.list = func() ([]nvml.GPU, error) {
			l := c.looks[min(looked, len(c.looks)-1)]
			looked++
			g := nvml.GPU{Index: 0, Total: 80 * gib, Used: l.used * gib, Holders: []nvml.Holder{{PID: 9, Bytes: 3 * gib}}}
			if l.own {
				g.Holders = append(g.Holders, nvml.Holder{PID: 41, Name: "python"})
			}
			return []nvml.GPU{g}, nil
		}
		stuck := trace.drain(context.Background(), func(context.Context, time.Duration) error { return nil })
		if looked != c.want || (len(stuck) == 1) != c.stuck {
			t.Errorf("%s: %d looks, want %d; stuck %q", c.name, looked, c.want, stuck)
		}
		if c.stuck && stuck[0] != "python (pid 41) on GPU 0" {
			t.Errorf("%s: %q", c.name, stuck)
		}
	}
}

func TestShort(t *testing.T) {
	const gib = memory.GiB
	trace := &gpuTrace{list: func() ([]nvml.GPU, error) {
		return []nvml.GPU{
			{Index: 0, Total: 80 * gib, Used: 70 * gib, Free: 10 * gib, Holders: []nvml.Holder{{PID: 9, Name: "python"}}},
			{Index: 1, Total: 80 * gib, Used: 20 * gib, Free: 60 * gib},
		}, nil
	}}
	if got := trace.short(60 * gib); len(got) != 1 || got[0] != "GPU 0 has 10 GiB of 80 GiB free, python (pid 9)" {
		t.Errorf("%q", got)
	}
	if got := trace.short(10 * gib); len(got) != 0 {
		t.Errorf("%q", got)
	}
}
