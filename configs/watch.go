package configs

import (
	"context"
	"sync"

	"headroom/cuda"
	"headroom/harness"
	"headroom/memory"
)

// watch is the GPU of a job as NVML sees it. Where there is no NVML it sees
// nothing, and the run goes on without.
type watch struct {
	job *Job

	mu     sync.Mutex
	faults []cuda.Xid // of all GPUs, not handed on yet
}

func (j *Job) watch(ctx context.Context) harness.Watch {
	if j.Config.Device.Kind == "host" {
		return nil
	}
	w := &watch{job: j}
	if xids, err := cuda.Watch(ctx); err == nil {
		go w.collect(xids.Events())
	}
	return w
}

func (w *watch) collect(events <-chan cuda.Xid) {
	for x := range events {
		w.mu.Lock()
		w.faults = append(w.faults, x)
		w.mu.Unlock()
	}
}

// Faults implements [harness.Watch]. Those of other GPUs are not the job's.
func (w *watch) Faults() []harness.Fault {
	w.mu.Lock()
	all := w.faults
	w.faults = nil
	w.mu.Unlock()
	if w.job.uuid == "" {
		return nil
	}
	var own []harness.Fault
	for _, x := range all {
		if x.UUID == "" || x.UUID == w.job.uuid {
			own = append(own, harness.Fault{Time: x.Time, Code: x.Code, Text: x.String()})
		}
	}
	return own
}

// Read implements [harness.Watch].
func (w *watch) Read() *harness.Reading {
	if w.job.uuid == "" {
		return nil
	}
	all, err := cuda.GPUs()
	if err != nil {
		return nil
	}
	for _, g := range all {
		if g.UUID == w.job.uuid {
			return reading(g)
		}
	}
	return nil
}

// reading is g without what is not known of it, nil if that is everything.
func reading(g cuda.GPU) *harness.Reading {
	r := harness.Reading{Utilisation: known(g.Utilisation), Temperature: known(g.Temperature), Used: known(g.Used),
		Throttled: g.Throttled, UncorrectedECC: known(g.UncorrectedECC)}
	if r.Utilisation == nil && r.Temperature == nil && r.Used == nil && r.Throttled == nil && r.UncorrectedECC == nil {
		return nil
	}
	return &r
}

func known[T int | int64 | memory.Bytes](v T) *T {
	if v == cuda.Unknown {
		return nil
	}
	return &v
}
