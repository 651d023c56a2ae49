package recovery

import (
	"strings"
	"testing"
)

func TestAfterGone(t *testing.T) {
	plan := Plan{Effective: 64, World: 1, Micro: 64}
	h := NewHistory(plan)
	for before, want := range []Remedy{Exec, Exec, Exec, Stop, Stop} {
		g := DeviceGone{Why: "step 9: the GPU is gone", Reported: []string{"Xid 79 on GPU 0", "Xid 48 on GPU 0"}, From: 4, Before: before}
		d := Decide(Policy{}, h, Event{Gone: &g})
		if d.Remedy != want || d.Plan != plan || !strings.HasSuffix(d.Reason, ": step 9: the GPU is gone; the driver reported: Xid 79 on GPU 0, Xid 48 on GPU 0") || strings.Replace(d.Reason, ": "+g.Why, "", 1) != d.Brief {
			t.Errorf("after %d: %+v", before, d)
		}
		if says := strings.Contains(d.Hint, "from step 4"); says != (want == Stop) {
			t.Errorf("after %d: hint %q", before, d.Hint)
		}
		if h.Apply(Event{Gone: &g}, d) != h {
			t.Error("a device that is gone changes the history, which belongs to the process that ends")
		}
	}
}

// TestAfterGoneStops checks that, after its device was lost, a run is not restarted
// if it had been asked to stop or if restarts cannot be counted.
func TestAfterGoneStops(t *testing.T) {
	for want, g := range map[string]DeviceGone{
		"the device was lost while the run was being stopped: gone":                                                                 {Why: "gone", From: 4, Ending: true, JournalFails: true},
		"the device was lost, and the job is not restarted because the journal, which records such losses, cannot be written: gone": {Why: "gone", From: 4, JournalFails: true},
	} {
		d := Decide(Policy{}, NewHistory(Plan{Effective: 64, World: 1, Micro: 64}), Event{Gone: &g})
		if d.Remedy != Stop || d.Reason != want || !strings.HasSuffix(d.Hint, "continues from step 4") {
			t.Errorf("%+v", d)
		}
	}
}
