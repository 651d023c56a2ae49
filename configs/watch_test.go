package configs

import (
	"testing"

	"headroom/cuda"
	"headroom/memory"
)

func TestWatchKeepsToItsGPU(t *testing.T) {
	events := make(chan cuda.Xid)
	w := &watch{job: &Job{uuid: "GPU-1"}}
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.collect(events)
	}()
	for _, x := range []cuda.Xid{{Code: 79, UUID: "GPU-1"}, {Code: 13, UUID: "GPU-2"}, {Code: 48, GPU: cuda.Unknown}} {
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

// TestNoGPUNoFaults holds that faults of a GPU are not blamed on a run that does
// not use it.
func TestNoGPUNoFaults(t *testing.T) {
	w := &watch{job: &Job{}, faults: []cuda.Xid{{Code: 79, UUID: "GPU-1"}}}
	if got := w.Faults(); got != nil {
		t.Errorf("%+v", got)
	}
	if got := w.Read(); got != nil {
		t.Errorf("%+v", got)
	}
	j := Job{Config: &Config{Device: Device{Kind: "host"}}}
	if got := j.watch(t.Context()); got != nil {
		t.Errorf("the host is watched by %T", got)
	}
}

func TestReading(t *testing.T) {
	nothing := cuda.GPU{Utilisation: cuda.Unknown, Temperature: cuda.Unknown, Used: cuda.Unknown, UncorrectedECC: cuda.Unknown}
	if r := reading(nothing); r != nil {
		t.Errorf("of nothing: %v", r)
	}
	some := nothing
	some.Temperature, some.Used = 0, 2*memory.GiB
	if r := reading(some); r == nil || r.String() != "0 °C, 2 GiB used" || r.Utilisation != nil || r.UncorrectedECC != nil {
		t.Errorf("of some: %v", r)
	}
}
