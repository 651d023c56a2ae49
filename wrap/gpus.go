package wrap

import (
	"context"
	"fmt"
	"slices"
	"time"

	"headroom/memory"
	"headroom/nvml"
	"headroom/wrap/command"
)

// sampleEvery is how often the GPUs are sampled: often enough to see a peak that
// lasts, seldom enough to cost nothing.
const sampleEvery = 500 * time.Millisecond

// gpuTrace records how much GPU memory a command held during one of its attempts. It may be
// used from one goroutine only.
type gpuTrace struct {
	c    command.Line
	list func() ([]nvml.GPU, error) // nvml.GPUs, if nil; tests have a fake
	mine func(pid int) bool         // reports whether a process belongs to the command
	seen []command.GPU              // what has been recorded so far
	own  map[int]bool               // ids of the command's processes that have held memory
	busy bool                       // a GPU was computing at the newest look, or may have been
	uses func(kernel bool)          // called when the command uses a GPU, with whether a kernel ran; may be nil
}

// listed returns the GPUs according to list or, if that is nil, to NVML.
func listed(list func() ([]nvml.GPU, error)) ([]nvml.GPU, error) {
	if list != nil {
		return list()
	}
	return nvml.GPUs()
}

// look returns those of the command's GPUs whose memory is known. It returns none if NVML
// does not answer.
func (t *gpuTrace) look() []nvml.GPU {
	all, err := listed(t.list)
	if err != nil {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(t.c.GPUs(all)), func(g nvml.GPU) bool { return g.Total <= 0 || g.Used < 0 })
}

// sample looks at the GPUs once and records what it sees.
func (t *gpuTrace) sample() {
	t.busy = false
	for _, g := range t.look() {
		own := t.add(g)
		t.busy = t.busy || g.Utilisation != 0
		if kernel := g.Utilisation > 0; t.uses != nil && (own > 0 || kernel) {
			t.uses(kernel)
		}
	}
}

// add records one look at a GPU, and returns how much of the GPU's memory the command
// holds.
func (t *gpuTrace) add(g nvml.GPU) (own memory.Bytes) {
	for _, h := range g.Holders {
		if t.mine(h.PID) {
			if t.own == nil {
				t.own = map[int]bool{}
			}
			t.own[h.PID] = true
			own += max(0, h.Bytes)
		}
	}
	others := max(0, g.Used-own)
	i := slices.IndexFunc(t.seen, func(s command.GPU) bool { return s.Index == g.Index })
	if i < 0 {
		t.seen = append(t.seen, command.GPU{Index: g.Index, Total: g.Total, Before: others})
		i = len(t.seen) - 1
	}
	t.seen[i].Peak = max(t.seen[i].Peak, own)
	t.seen[i].Foreign = others
	return own
}

// watch takes samples in the background until ctx ends, and then sends the trace on the
// channel that it returns. The first sample may take as long as NVML takes to open, but
// the caller does not wait for it.
func (t *gpuTrace) watch(ctx context.Context) <-chan []command.GPU {
	done := make(chan []command.GPU, 1)
	go func() {
		t.sample()
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

// How long drain waits for the driver to free the memory of dead processes, and how often
// it looks. Usually the driver needs only a moment, but it never frees the memory of a
// process that cannot be killed.
const (
	drainPatience = 30 * time.Second
	drainEvery    = 250 * time.Millisecond
)

// drain waits until the memory of the command's dead processes is free again: none of
// these processes holds any, and each GPU either holds no more than before the start or
// has stopped getting emptier. If drainPatience passes first, or sleep returns an error,
// drain returns a description of the processes that still hold memory.
func (t *gpuTrace) drain(ctx context.Context, sleep func(context.Context, time.Duration) error) (stuck []string) {
	var before []nvml.GPU
	for range int(drainPatience / drainEvery) {
		now := t.look()
		if stuck = t.stuck(now); len(stuck) == 0 && !t.emptying(before, now) {
			return nil
		}
		before = now
		if sleep(ctx, drainEvery) != nil {
			break
		}
	}
	return stuck
}

// holders returns the ids of all processes that hold memory of the command's GPUs now.
func (t *gpuTrace) holders() (pids []int) {
	for _, g := range t.look() {
		for _, h := range g.Holders {
			pids = append(pids, h.PID)
		}
	}
	return pids
}

// stuck describes the command's processes that still hold memory, one string for each
// process and GPU.
func (t *gpuTrace) stuck(now []nvml.GPU) (names []string) {
	for _, g := range now {
		for _, h := range g.Holders {
			if t.own[h.PID] {
				names = append(names, fmt.Sprintf("%v on GPU %d", h, g.Index))
			}
		}
	}
	return names
}

// emptying reports whether a GPU may still be getting emptier: it holds more than at the
// start, and either it held even more at the previous look, or there was no previous
// look.
func (t *gpuTrace) emptying(before, now []nvml.GPU) bool {
	return slices.ContainsFunc(now, func(g nvml.GPU) bool {
		at := slices.IndexFunc(t.seen, func(s command.GPU) bool { return s.Index == g.Index })
		if at < 0 || g.Used <= t.seen[at].Before+g.Total/100 {
			return false
		}
		last := slices.IndexFunc(before, func(b nvml.GPU) bool { return b.Index == g.Index })
		return last < 0 || g.Used < before[last].Used
	})
}

// short returns a description of each GPU that has less than the given amount free, with
// the processes that hold its memory.
func (t *gpuTrace) short(free memory.Bytes) (names []string) {
	for _, g := range t.look() {
		if g.Free >= free || g.Free < 0 {
			continue
		}
		text := fmt.Sprintf("GPU %d has %v of %v free", g.Index, g.Free, g.Total)
		for _, h := range g.Holders {
			text += fmt.Sprintf(", %v", h)
		}
		names = append(names, text)
	}
	return names
}
