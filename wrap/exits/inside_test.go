package exits

import (
	"strings"
	"testing"

	"headroom/memory"
)

// TestFromInside checks that a worker's numbers replace those of an error message, and
// that a command that ended for another stated reason keeps that reason.
func TestFromInside(t *testing.T) {
	seen := memory.OutOfMemoryError{Requested: 2 << 30, Phase: memory.PhaseBackward, Micro: 40,
		Stats: memory.Stats{Capacity: 24 << 30, Free: 1 << 30, Reserved: 23 << 30, Allocated: 22 << 30}}
	text := func(phase memory.Phase) Outcome {
		return Outcome{Kind: OutOfMemory, Confidence: Certain, Reasons: []string{"it says so"}, Error: "OutOfMemoryError",
			Evidence: &memory.Evidence{Failure: memory.OutOfMemoryError{Requested: 5, Phase: phase, Stats: memory.Stats{Capacity: 7}}}}
	}
	blind := seen
	blind.Stats = memory.Stats{}
	for name, c := range map[string]struct {
		from  Outcome
		seen  memory.OutOfMemoryError
		kind  Kind
		phase memory.Phase
		taken bool
	}{
		"a text":               {text(memory.PhaseUnknown), seen, OutOfMemory, memory.PhaseBackward, true},
		"a text with a phase":  {text(memory.PhaseEval), seen, OutOfMemory, memory.PhaseEval, true},
		"nothing":              {Outcome{Kind: Failed, Confidence: Possible, Reasons: []string{"status 3"}}, seen, OutOfMemory, memory.PhaseBackward, true},
		"another error":        {Outcome{Kind: Failed, Confidence: Certain, Reasons: []string{"ValueError"}, Error: "ValueError: mine"}, seen, Failed, "", false},
		"the machine's memory": {Outcome{Kind: OutOfHostMemory, Confidence: Certain}, seen, OutOfHostMemory, "", false},
		"done":                 {Outcome{Kind: Done, Confidence: Certain}, seen, Done, "", false},
		"stopped":              {Outcome{Kind: Stopped, Confidence: Certain}, seen, Stopped, "", false},
		"no numbers":           {text(memory.PhaseUnknown), blind, OutOfMemory, memory.PhaseUnknown, false},
	} {
		got := c.from.FromInside(memory.Evidence{Failure: c.seen}, "train.py:31")
		if got.Kind != c.kind || c.taken != (len(got.Reasons) == len(c.from.Reasons)+1) {
			t.Errorf("%s: %+v", name, got)
		}
		if !c.taken {
			continue
		}
		f := got.Evidence.Failure
		if f.Stats != seen.Stats || f.Requested != seen.Requested || f.Phase != c.phase || f.Micro != 0 || !got.OutOfMemory() {
			t.Errorf("%s: %+v, %+v", name, got, f)
		}
		if !strings.HasPrefix(got.Reasons[0], "the worker inside PyTorch saw the failure: out of memory at micro-batch 40") || !strings.HasSuffix(got.Reasons[0], "(train.py:31)") {
			t.Errorf("%s: %q", name, got.Reasons)
		}
	}
}

// TestLeakFromInside checks that a leak is recognised even if memory finally runs out in
// the optimizer's update. Without a leak, such a failure would be hopeless.
func TestLeakFromInside(t *testing.T) {
	o := Outcome{Kind: OutOfMemory, Confidence: Certain, Hopeless: "the optimizer's state does not depend on the micro-batch",
		Evidence: &memory.Evidence{Failure: memory.OutOfMemoryError{Phase: memory.PhaseUpdate}}}
	seen := memory.Evidence{Every: 16, Failure: memory.OutOfMemoryError{Requested: 148 << 20, Phase: memory.PhaseUpdate, Micro: 2,
		Stats: memory.Stats{Capacity: 56 << 30, Free: 51 << 20, Reserved: 55 << 30, Allocated: 55 << 30}}}
	if got := o.FromInside(seen, ""); got.Hopeless == "" || got.Hint != "" {
		t.Errorf("without a leak it is hopeless, and there is nothing to say: %+v", got)
	}
	for i := range memory.Bytes(100) {
		seen.Boundary = append(seen.Boundary, i*16*12<<20)
	}
	got := o.FromInside(seen, "")
	verdict := memory.Diagnose(*got.Evidence)
	if got.Hopeless != "" || got.Reasons[0] != verdict.Why || !strings.Contains(got.Hint, "loss.item()") || verdict.Cause != memory.Leak || !strings.Contains(verdict.Why, "over the last 1600 steps") || !strings.HasSuffix(verdict.Why, ", 12 MiB per step") {
		t.Errorf("%q, %v", got.Hopeless, verdict)
	}
}

// TestHolderFromInside checks that what is known to hold memory is the reason and the hint of an end for
// want of memory, whether or not the worker has seen the failure with its numbers.
func TestHolderFromInside(t *testing.T) {
	held := memory.Holder{Kind: "collected", Name: "seen", Bytes: 3 << 30, Cure: "empty `seen`", Host: true}
	killed := Outcome{Kind: OutOfHostMemory, Hopeless: "no", Hint: "another", Evidence: &memory.Evidence{Host: true}}
	if got := killed.Grown(held); got.Hopeless != "" || got.Hint != held.Cure || got.Reasons[0] != held.Facts() {
		t.Errorf("%+v", got)
	}
	if killed.Evidence.Holder != nil {
		t.Error("the evidence of the outcome before has changed")
	}
	if got := (Outcome{Kind: Failed, Hint: "mine"}).Grown(held); got.Hint != "mine" || got.Reasons != nil {
		t.Errorf("%+v", got)
	}
	held.Host = false
	if got := killed.Grown(held); got.Hopeless != "no" || got.Hint != "another" {
		t.Errorf("the device's memory did not run out: %+v", got)
	}
	full := memory.OutOfMemoryError{Requested: 1 << 30, Phase: memory.PhaseForward, Stats: memory.Stats{Capacity: 56 << 30, Reserved: 56 << 30, Allocated: 56 << 30}}
	died := Outcome{Kind: OutOfMemory, Evidence: &memory.Evidence{Failure: full}}
	if got := died.FromInside(memory.Evidence{Failure: full, Holder: &held}, ""); got.Hint != held.Cure || got.Reasons[0] != held.Facts() {
		t.Errorf("%+v", got)
	}
}
