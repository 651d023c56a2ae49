package wrap

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"headroom/memory"
	"headroom/nvml"
)

// visible are the GPUs that a command with this CUDA_VISIBLE_DEVICES may use, as
// CUDA reads it: indices or beginnings of UUIDs, up to the first that names none.
// Indices are taken as NVML counts, which is CUDA's order where the GPUs are alike
// or CUDA_DEVICE_ORDER is PCI_BUS_ID.
func visible(value string, set bool, all []nvml.GPU) []nvml.GPU {
	if !set {
		return all
	}
	var chosen []nvml.GPU
	for _, word := range strings.Split(value, ",") {
		word = strings.TrimSpace(word)
		n, err := strconv.Atoi(word)
		i := slices.IndexFunc(all, func(g nvml.GPU) bool {
			if err == nil {
				return g.Index == n
			}
			return word != "" && strings.HasPrefix(g.UUID, word)
		})
		if i < 0 {
			break
		}
		chosen = append(chosen, all[i])
	}
	return chosen
}

// sampleEvery is how often the GPUs are looked at: often enough to see a peak that
// lasts, seldom enough to cost nothing.
const sampleEvery = 500 * time.Millisecond

// gpuTrace is what a command's GPUs held over one of its lives. It is for one
// goroutine.
type gpuTrace struct {
	c    Command
	list func() ([]nvml.GPU, error) // nvml.GPUs
	mine func(pid int) bool         // whether a process is the command's
	seen []GPU
}

// sample takes one look. Where NVML does not answer nothing is known.
func (t *gpuTrace) sample() {
	all, err := t.list()
	if err != nil {
		return
	}
	value, set := t.c.Getenv("CUDA_VISIBLE_DEVICES")
	for _, g := range visible(value, set, all) {
		if g.Total > 0 && g.Used >= 0 {
			t.add(g)
		}
	}
}

func (t *gpuTrace) add(g nvml.GPU) {
	own := memory.Bytes(0)
	for _, h := range g.Holders {
		if t.mine(h.PID) {
			own += max(0, h.Bytes)
		}
	}
	others := max(0, g.Used-own)
	i := slices.IndexFunc(t.seen, func(s GPU) bool { return s.Index == g.Index })
	if i < 0 {
		t.seen = append(t.seen, GPU{Index: g.Index, Total: g.Total, Before: others})
		i = len(t.seen) - 1
	}
	t.seen[i].Peak = max(t.seen[i].Peak, own)
	t.seen[i].Foreign = others
}

// watch samples until ctx ends, and hands the trace over then.
func (t *gpuTrace) watch(ctx context.Context) <-chan []GPU {
	done := make(chan []GPU, 1)
	t.sample()
	go func() {
		tick := time.NewTicker(sampleEvery)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				t.sample()
			case <-ctx.Done():
				done <- t.seen
				return
			}
		}
	}()
	return done
}

// drained tells whether none of the command's processes holds memory of a GPU any
// more. A driver gives the memory of the dead back a moment after they are gone.
func drained(all []nvml.GPU, mine func(pid int) bool) bool {
	for _, g := range all {
		if slices.ContainsFunc(g.Holders, func(h nvml.Holder) bool { return mine(h.PID) }) {
			return false
		}
	}
	return true
}
