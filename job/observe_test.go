package job

import (
	"testing"

	"headroom/configs"
	"headroom/memory"
	"headroom/nvml"
)

func TestWatchKeepsToItsGPU(t *testing.T) {
	events := make(chan nvml.Xid)
	w := &observer{job: &Job{uuid: "GPU-1"}}
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.collect(events)
	}()
	for _, x := range []nvml.Xid{{Code: 79, UUID: "GPU-1"}, {Code: 13, UUID: "GPU-2"}, {Code: 48, GPU: nvml.Unknown}} {
		events <- x
	}
	close(events)
	<-done
	got := w.Faults()
	if len(got) != 2 || got[0].Code != 79 || got[0].Text != "Xid 79 on GPU 0: the GPU has fallen off the bus" || got[1].Code != 48 {
		t.Errorf("%+v", got)
	}
	if again := w.Faults(); again != nil {
		t.Errorf("told twice: %+v", again)
	}
}

// TestNoGPUNoFaults checks that a job without a GPU reports no faults and no readings,
// and that a run on the host is not observed at all.
func TestNoGPUNoFaults(t *testing.T) {
	w := &observer{job: &Job{}, faults: []nvml.Xid{{Code: 79, UUID: "GPU-1"}}}
	if got := w.Faults(); got != nil {
		t.Errorf("%+v", got)
	}
	if got := w.Read(); got != nil {
		t.Errorf("%+v", got)
	}
	j := Job{Config: &configs.Config{Device: configs.Device{Kind: "host"}}}
	if got := j.observe(t.Context()); got != nil {
		t.Errorf("the host is watched by %T", got)
	}
}

func TestReading(t *testing.T) {
	nothing := nvml.GPU{Utilisation: nvml.Unknown, Temperature: nvml.Unknown, Used: nvml.Unknown, UncorrectedECC: nvml.Unknown}
	if r := reading(nothing); r != nil {
		t.Errorf("of nothing: %v", r)
	}
	some := nothing
	some.Temperature, some.Used = 0, 2*memory.GiB
	if r := reading(some); r == nil || r.String() != "0 °C, 2 GiB used" || r.Utilisation != nil || r.UncorrectedECC != nil {
		t.Errorf("of some: %v", r)
	}
}
