package report

import (
	"errors"
	"strings"
	"testing"
	"time"

	"headroom/memory"
	"headroom/recovery"
	"headroom/runs"
)

func (d *diary) reading(busy, hot int, throttled ...string) {
	used, ecc := 3*memory.GiB, int64(0)
	d.entry(runs.Entry{Kind: runs.KindDevice, Device: &runs.Reading{Utilisation: &busy, Temperature: &hot, Used: &used, Throttled: throttled, UncorrectedECC: &ecc}})
}

// lossy returns a run whose GPU falls off the bus twice. If stop is true, the GPU does
// not come back after the second time.
func lossy(stop bool) *diary {
	d := newDiary("lossy", 60)
	d.begin()
	d.walk(20, 0)
	d.reading(97, 61)
	d.walk(50, 0)
	d.reading(99, 70, "power cap")
	d.reading(40, 66)
	for n := 1; n <= 2; n++ {
		at := d.now.Add(-2 * time.Second)
		d.entry(runs.Entry{Kind: runs.KindFault, Fault: &runs.Fault{Time: at, Code: 79, Text: "Xid 79 on GPU 0: the GPU has fallen off the bus"}, Text: "Xid 79"})
		d.entry(runs.Entry{Kind: runs.KindGone, Text: "step 51: the GPU is lost"})
		decision := recovery.Decision{Remedy: recovery.Relaunch, Plan: d.plan, Brief: "relaunch in a new process from step 50 (1 of 3)", Reason: "relaunch in a new process from step 50 (1 of 3): step 51: the GPU is lost"}
		if stop && n == 2 {
			decision = recovery.Decision{Remedy: recovery.Stop, Plan: d.plan, Reason: "the device was lost 2 times", Hint: "look for Xid errors in dmesg"}
			d.entry(runs.Entry{Kind: runs.KindFailed, Text: decision.Reason, Decision: &decision})
			return d
		}
		d.entry(runs.Entry{Kind: runs.KindDecision, Text: decision.Reason, Decision: &decision})
		d.begin()
	}
	d.walk(60, 0)
	d.entry(runs.Entry{Kind: runs.KindDone, Text: "done"})
	return d
}

func (r *Report) card(question string) (Card, error) {
	for _, c := range r.Cards() {
		if c.Question == question {
			return c, nil
		}
	}
	return Card{}, errors.New("no card " + question)
}

func TestDeviceCard(t *testing.T) {
	c, err := New(lossy(false).Input).card("Device")
	if err != nil || c.Answer != "61 to 70 °C, 97 % busy, lost 2 times" || c.Tone != Warn {
		t.Errorf("%+v, %v", c, err)
	}
	for _, want := range []string{
		"the busy share is the median of 3 readings", "clocks held back in 1 of 3 readings: power cap",
		"2 Mar 2026 22:14:54: Xid 79 on GPU 0: the GPU has fallen off the bus",
	} {
		if !strings.Contains(c.Note, want) {
			t.Errorf("no %q in %q", want, c.Note)
		}
	}
	if strings.Contains(c.Note, "memory error") {
		t.Errorf("%q", c.Note)
	}
	if c, err := New(night().Input).card("Device"); err == nil {
		t.Errorf("a run that nothing was seen of has %+v", c)
	}
}

func TestDeviceCardOfLittle(t *testing.T) {
	hot, ecc := 60, int64(2)
	for want, entries := range map[string][]runs.Entry{
		"60 °C: ": {{Device: &runs.Reading{Temperature: &hot}}},
		"not read: 2 uncorrected memory errors since the driver was loaded": {{Device: &runs.Reading{UncorrectedECC: &ecc}}},
		"lost 1 time: ": {{Kind: runs.KindGone}},
		"not read: 1 Jan 0001 00:00:00: a; 1 Jan 0001 00:00:00: a; 1 Jan 0001 00:00:00: a; 1 Jan 0001 00:00:00: a; and 2 more faults": {
			{Fault: &runs.Fault{Text: "a"}}, {Fault: &runs.Fault{Text: "a"}}, {Fault: &runs.Fault{Text: "a"}},
			{Fault: &runs.Fault{Text: "a"}}, {Fault: &runs.Fault{Text: "a"}}, {Fault: &runs.Fault{Text: "a"}}},
	} {
		c, err := New(Input{Entries: entries}).card("Device")
		if got := c.Answer + ": " + c.Note; got != want || err != nil {
			t.Errorf("%q, %v\nwant %q", got, err, want)
		}
	}
}

func TestLossesInTheLedger(t *testing.T) {
	r := New(lossy(false).Input)
	if len(r.Ledger) != 4 {
		t.Fatalf("%+v", r.Ledger)
	}
	fault, lost := r.Ledger[0], r.Ledger[1]
	if fault.What != "device fault" || fault.Remedy != "" || fault.Time != r.Watched.Faults[0].Time || fault.Failed {
		t.Errorf("fault %+v", fault)
	}
	if lost.What != "device lost" || lost.Remedy != "relaunch" || lost.Why != "step 51: the GPU is lost" || lost.Failed ||
		lost.Reason != "relaunch in a new process from step 50 (1 of 3)" {
		t.Errorf("loss %+v", lost)
	}
	if r.Failures.Total != 0 || r.Outcome.State != Finished || r.Attempts[0].Ended != "device lost: step 51: the GPU is lost" {
		t.Errorf("failures %+v, outcome %+v, attempts %+v", r.Failures, r.Outcome, r.Attempts)
	}
}

func TestLostForGood(t *testing.T) {
	r := New(lossy(true).Input)
	last := r.Ledger[len(r.Ledger)-1]
	if last.What != "device lost" || last.Remedy != "stop" || last.Tone != Bad || r.Outcome.State != Failed || r.Outcome.Reason != "the device was lost 2 times" {
		t.Errorf("%+v, outcome %+v", last, r.Outcome)
	}
	if r.Advice[0] != "look for Xid errors in dmesg" {
		t.Errorf("advice %q", r.Advice)
	}
	for _, text := range []string{html(t, r), markdown(t, r, nil)} {
		if !strings.Contains(text, "fallen off the bus") || !strings.Contains(text, "61 to 70 °C") {
			t.Errorf("nothing of the device in\n%s", text)
		}
	}
}

// TestLostWhileStopping checks a device that is lost while the run is being stopped, so
// that no decision follows. A later event must not be taken for the answer to that loss.
func TestLostWhileStopping(t *testing.T) {
	d := newDiary("stopped", 60)
	d.begin()
	d.walk(20, 0)
	d.entry(runs.Entry{Kind: runs.KindGone, Text: "step 21: the GPU is lost"})
	d.entry(runs.Entry{Kind: runs.KindInterrupted, Text: "the device was lost while the run was being stopped"})
	d.begin()
	stop := recovery.Decision{Remedy: recovery.Stop, Plan: d.plan, Reason: "no room", Hint: "make room"}
	d.entry(runs.Entry{Kind: runs.KindFailed, Text: "no room", Decision: &stop})
	var got []string
	for _, row := range New(d.Input).Ledger {
		got = append(got, row.What+" "+row.Remedy)
	}
	if got, want := strings.Join(got, ", "), "device lost , interrupted , attempt 2 , failed stop"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
