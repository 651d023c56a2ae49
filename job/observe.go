package job

import (
	"context"
	"sync"

	"headroom/harness"
	"headroom/memory"
	"headroom/nvml"
	"headroom/runs"
)

// observer watches the GPU of a job through NVML. Without NVML it reports nothing, and
// the run continues all the same.
type observer struct {
	job *Job

	mu     sync.Mutex
	faults []nvml.Xid // of all GPUs, not yet returned by Faults
}

func (j *Job) observe(ctx context.Context) harness.Observer {
	if j.Config.Device.Kind == "host" {
		return nil
	}
	o := &observer{job: j}
	if xids, err := nvml.Watch(ctx); err == nil {
		go o.collect(xids)
	}
	return o
}

func (o *observer) collect(events <-chan nvml.Xid) {
	for x := range events {
		o.mu.Lock()
		o.faults = append(o.faults, x)
		o.mu.Unlock()
	}
}

// Faults implements [harness.Observer]. It drops the faults of GPUs that the job does not
// use.
func (o *observer) Faults() []runs.Fault {
	o.mu.Lock()
	all := o.faults
	o.faults = nil
	o.mu.Unlock()
	if o.job.uuid == "" {
		return nil
	}
	var own []runs.Fault
	for _, x := range all {
		if x.UUID == "" || x.UUID == o.job.uuid {
			own = append(own, runs.Fault{Time: x.Time, Code: x.Code, Text: x.String()})
		}
	}
	return own
}

// Read implements [harness.Observer].
func (o *observer) Read() *runs.Reading {
	if o.job.uuid == "" {
		return nil
	}
	all, err := nvml.GPUs()
	if err != nil {
		return nil
	}
	for _, g := range all {
		if g.UUID == o.job.uuid {
			return reading(g)
		}
	}
	return nil
}

// reading returns what is known about g, or nil if nothing is.
func reading(g nvml.GPU) *runs.Reading {
	r := runs.Reading{Utilisation: known(g.Utilisation), Temperature: known(g.Temperature), Used: known(g.Used),
		Throttled: g.Throttled, UncorrectedECC: known(g.UncorrectedECC)}
	if r.Utilisation == nil && r.Temperature == nil && r.Used == nil && r.Throttled == nil && r.UncorrectedECC == nil {
		return nil
	}
	return &r
}

func known[T int | int64 | memory.Bytes](v T) *T {
	if v == nvml.Unknown {
		return nil
	}
	return &v
}
