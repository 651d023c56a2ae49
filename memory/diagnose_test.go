package memory

import (
	"strings"
	"testing"
)

// rising returns n amounts. The first is start, and each of the others is larger than
// the one before it by step.
func rising(n int, start, step Bytes) []Bytes {
	out := make([]Bytes, n)
	for i := range out {
		out[i] = start + Bytes(i)*step
	}
	return out
}

func TestDiagnose(t *testing.T) {
	full := Stats{Capacity: 24 * GiB, Reserved: 24 * GiB, Allocated: 23 * GiB, LargestFree: 100 * MiB}
	pieces := full
	pieces.Allocated = 21 * GiB
	alone := Stats{Capacity: 24 * GiB, Free: 20 * GiB, Reserved: 4 * GiB, Allocated: 4 * GiB}
	squeezed := full
	squeezed.Reserved, squeezed.Allocated, squeezed.Foreign = 14*GiB, 14*GiB, 10*GiB
	contexts := full
	contexts.Capacity = 25 * GiB
	failure := func(s Stats, requested Bytes) OutOfMemoryError {
		return OutOfMemoryError{Requested: requested, Stats: s, Phase: PhaseForward, Micro: 32}
	}
	whole := func(f OutOfMemoryError, needed Bytes) OutOfMemoryError {
		f.Whole = needed
		return f
	}
	phase := func(f OutOfMemoryError, p Phase, micro int) OutOfMemoryError {
		f.Phase, f.Micro = p, micro
		return f
	}
	noisy := rising(40, 4*GiB, 0)
	noisy[39] = 6 * GiB
	fallen := rising(40, 4*GiB, 100*MiB) // rises steadily, and falls back to its start at the end
	fallen[39] = 4 * GiB
	for _, c := range []struct {
		name     string
		evidence Evidence
		want     Cause
		says     []string
	}{
		{"too large a micro-batch", Evidence{Failure: failure(full, 2*GiB), Baseline: alone},
			Batch, []string{"2 GiB asked for at micro-batch 32 in forward, 0 B free"}},
		{"others without a baseline", Evidence{Failure: failure(squeezed, 2*GiB)},
			Foreign, []string{"other processes hold 10 GiB of 24 GiB"}},
		{"another process took it", Evidence{Failure: failure(squeezed, 2*GiB), Baseline: alone},
			Foreign, []string{"2 GiB asked for", "other processes have taken 10 GiB"}},
		{"another process that NVML cannot see", Evidence{Failure: failure(Stats{Capacity: 24 * GiB, Reserved: 14 * GiB, Allocated: 14 * GiB}, 2*GiB), Baseline: alone},
			Foreign, []string{"other processes have taken 10 GiB"}},
		{"another process, but it would not have fitted anyway", Evidence{Failure: failure(squeezed, 12*GiB), Baseline: alone},
			Batch, []string{"12 GiB asked for at micro-batch 32 in forward, 0 B free"}},
		{"a process that was there before", Evidence{Failure: failure(squeezed, 2*GiB), Baseline: squeezed},
			Foreign, []string{"other processes hold 10 GiB of 24 GiB"}},
		{"it is named", Evidence{Failure: OutOfMemoryError{Requested: GiB, Micro: 8, Stats: squeezed, Others: "python (pid 7) holds 10 GiB"}, Baseline: alone},
			Foreign, []string{": python (pid 7) holds 10 GiB"}},
		{"contexts alone", Evidence{Failure: failure(contexts, 2*GiB)},
			Batch, nil},
		{"in pieces", Evidence{Failure: failure(pieces, 900*MiB), Baseline: alone},
			Fragmentation, []string{"900 MiB asked for", "3 GiB reserved but unused", "the largest block 100 MiB"}},
		{"in pieces, but more than all of them", Evidence{Failure: failure(pieces, 4*GiB), Baseline: alone},
			Batch, nil},
		{"a small request into an ordinary cache", Evidence{Failure: failure(full, 900*MiB), Baseline: alone},
			Batch, []string{"900 MiB asked for at micro-batch 32 in forward, 0 B free and 1 GiB reserved but unused, in blocks that are too small"}},
		{"a leak", Evidence{Failure: failure(full, 2*GiB), Baseline: alone, Boundary: rising(20, 4*GiB, 100*MiB)},
			Leak, []string{"1.9 GiB over the last 20 steps", "100 MiB per step"}},
		{"a leak of which every eighth step is known", Evidence{Failure: failure(full, 2*GiB), Baseline: alone, Boundary: rising(20, 4*GiB, 100*MiB), Every: 8},
			Leak, []string{"1.9 GiB over the last 160 steps", "12.5 MiB per step"}},
		{"too short for a leak", Evidence{Failure: failure(full, 2*GiB), Baseline: alone, Boundary: rising(19, 4*GiB, 100*MiB)},
			Batch, nil},
		{"too slow for a leak", Evidence{Failure: failure(full, 2*GiB), Baseline: alone, Boundary: rising(20, 4*GiB, 20*MiB)},
			Batch, nil},
		{"one odd boundary is no leak", Evidence{Failure: failure(full, 2*GiB), Baseline: alone, Boundary: noisy},
			Batch, nil},
		{"a rise that was given back is no leak", Evidence{Failure: failure(full, 2*GiB), Baseline: alone, Boundary: fallen},
			Batch, nil},
		{"a leak seen only in the newest boundaries", Evidence{Failure: failure(full, 2*GiB), Baseline: alone, Boundary: append(rising(500, 4*GiB, 0), rising(200, 4*GiB, 10*MiB)...)},
			Leak, []string{"last 200 steps"}},
		{"an outlier", Evidence{Failure: failure(full, 2*GiB), Baseline: alone, Typical: 20 * GiB, Like: 3},
			Spike, []string{"at least 25 GiB", "last 3 similar steps peaked at 20 GiB"}},
		{"too few like it for an outlier", Evidence{Failure: failure(full, 2*GiB), Baseline: alone, Typical: 20 * GiB, Like: 2},
			Batch, nil},
		{"within the noise of its like", Evidence{Failure: failure(full, 2*GiB), Baseline: alone, Typical: 24 * GiB, Like: 9},
			Batch, nil},
		{"one sample is too large", Evidence{Failure: phase(failure(full, 2*GiB), PhaseBackward, 1)},
			Model, []string{"2 GiB asked for at micro-batch 1 in backward, ", "micro-batch 1, the smallest allowed", "25 GiB with 24 GiB available"}},
		{"the smallest allowed is too large", Evidence{Failure: phase(failure(full, 2*GiB), PhaseBackward, 4), MinMicro: 4},
			Model, []string{"micro-batch 4, the smallest allowed"}},
		{"optimizer state", Evidence{Failure: phase(failure(full, 2*GiB), PhaseUpdate, 0)},
			Model, []string{"2 GiB asked for in update, ", "; it needs at least 25 GiB with 24 GiB available, whatever the micro-batch"}},
		{"evaluation", Evidence{Failure: phase(failure(full, 2*GiB), PhaseEval, 32)},
			Model, []string{"2 GiB asked for at micro-batch 32 in eval, ", "; it needs at least 25 GiB with 24 GiB available, whatever the micro-batch"}},
		{"loading", Evidence{Failure: phase(failure(full, 2*GiB), PhaseLoad, 0)},
			Model, []string{"asked for in load", "it needs"}},
		{"what is known to hold it", Evidence{Failure: failure(full, 2*GiB), Baseline: alone, Holder: &Holder{Kind: "collected", Name: "seen", Bytes: 2 * GiB, PerStep: GiB}},
			Leak, []string{"memory grows by 1 GiB per step: `seen` holds 0 tensors, 2 GiB, more and more"}},
		{"too little is held", Evidence{Failure: failure(full, 2*GiB), Baseline: alone, Holder: &Holder{Bytes: 2*GiB - 1}},
			Batch, nil},
		{"another process took it, whatever is held", Evidence{Failure: failure(squeezed, 2*GiB), Baseline: alone, Holder: &Holder{Bytes: 3 * GiB}},
			Foreign, nil},
		{"what is held is not on the device", Evidence{Failure: failure(full, 2*GiB), Baseline: alone, Holder: &Holder{Bytes: 3 * GiB, Host: true}},
			Batch, nil},
		{"the machine's memory is held", Evidence{Failure: failure(full, 2*GiB), Host: true, Holder: &Holder{Bytes: 3 * GiB, Host: true}},
			Leak, nil},
		{"the device's is held, and the machine's ran out", Evidence{Failure: failure(full, 2*GiB), Host: true, Holder: &Holder{Bytes: 3 * GiB}},
			Host, nil},
		{"memory that nobody can measure is held", Evidence{Failure: OutOfMemoryError{Requested: GiB, Micro: 4}.Assume(0), Holder: &Holder{Bytes: 1, Host: true}},
			Leak, nil},
		{"the machine's memory", Evidence{Failure: failure(full, 2*GiB), Host: true},
			Host, []string{"2 GiB asked for"}},
		{"a device that says nothing", Evidence{Failure: OutOfMemoryError{Requested: GiB, Micro: 4}},
			Unknown, nil},
		{"a request nobody knows, in memory seen from outside", Evidence{Failure: failure(full, 0), Baseline: alone},
			Batch, []string{"an unknown amount asked for at micro-batch 32 in forward, "}},
		{"such a request of a step that needs more in all", Evidence{Failure: whole(failure(full, 0), 30*GiB), Baseline: alone},
			Batch, []string{"an unknown amount asked for at micro-batch 32 in forward, "}},
		{"such a request after others took room", Evidence{Failure: failure(squeezed, 0), Baseline: alone},
			Foreign, []string{"an unknown amount asked for", "other processes have taken 10 GiB"}},
		{"such a request where others were there first", Evidence{Failure: failure(squeezed, 0), Baseline: squeezed},
			Batch, nil},
		{"such a request where others took next to nothing", Evidence{Failure: failure(contexts, 0), Baseline: Stats{Capacity: 25 * GiB, Free: 25 * GiB}},
			Batch, nil},
		{"such a request in pieces", Evidence{Failure: failure(pieces, 0), Baseline: alone},
			Batch, nil},
		{"such a request beside lower peaks", Evidence{Failure: failure(full, 0), Baseline: alone, Typical: 2 * GiB, Like: 9},
			Batch, nil},
		{"such a request at one sample", Evidence{Failure: phase(failure(full, 0), PhaseBackward, 1)},
			Model, []string{"micro-batch 1, the smallest allowed, needs more than the 23 GiB already held, with 24 GiB available"}},
		{"evaluation is no outlier among training steps", Evidence{Failure: phase(failure(full, 2*GiB), PhaseEval, 0), Baseline: alone, Typical: 2 * GiB, Like: 9},
			Model, []string{"asked for in eval", "it needs"}},
		{"soon after resuming from a checkpoint", Evidence{Failure: failure(full, 2*GiB), Baseline: alone, Resuming: true},
			Resume, []string{"had got past this point", "2 GiB asked for at micro-batch 32 in forward, "}},
		{"loading a checkpoint", Evidence{Failure: phase(failure(full, 2*GiB), PhaseLoad, 0), Baseline: alone, Resuming: true},
			Resume, []string{"2 GiB asked for in load, "}},
		{"resuming from a checkpoint after others took room", Evidence{Failure: failure(squeezed, 2*GiB), Baseline: alone, Resuming: true},
			Foreign, nil},
		{"outside any micro-batch", Evidence{Failure: phase(failure(full, 2*GiB), PhaseUnknown, 0)},
			Unknown, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := Diagnose(c.evidence)
			if got.Cause != c.want {
				t.Fatalf("got %v, want %s", got, c.want)
			}
			for _, s := range c.says {
				if !strings.Contains(got.Why, s) {
					t.Errorf("%q does not say %q", got.Why, s)
				}
			}
		})
	}
}

func TestOutOfMemorySaysWhatWasTrue(t *testing.T) {
	e := &OutOfMemoryError{Requested: 2 * GiB, Phase: PhaseForward, Micro: 32,
		Stats: Stats{Capacity: 24 * GiB, Free: GiB, Reserved: 13 * GiB, Allocated: 12 * GiB, Foreign: 10 * GiB}}
	want := "out of memory at micro-batch 32 in forward: 2 GiB asked for, 1 GiB free of 24 GiB, 12 GiB allocated, 13 GiB reserved, 10 GiB held by other processes"
	if e.Error() != want {
		t.Errorf("got  %s\nwant %s", e, want)
	}
	if unknown := (&OutOfMemoryError{Micro: 8}).Error(); unknown != "out of memory at micro-batch 8: an unknown amount asked for" {
		t.Errorf("with nothing known: %s", unknown)
	}
	if e.Needed() != 14*GiB || e.Stats.Available() != 14*GiB {
		t.Errorf("needed %v, available %v", e.Needed(), e.Stats.Available())
	}
}

// TestBlocksNotKnown checks that a verdict leaves out the largest free block if it is
// not known.
func TestBlocksNotKnown(t *testing.T) {
	v := Diagnose(Evidence{Failure: OutOfMemoryError{Requested: GiB, Phase: PhaseForward, Micro: 8,
		Stats: Stats{Capacity: 24 * GiB, Reserved: 24 * GiB, Allocated: 20 * GiB}}})
	if v.Cause != Fragmentation || v.Why != "1 GiB asked for while 0 B was free and 4 GiB reserved but unused" {
		t.Errorf("%+v", v)
	}
}

func TestShort(t *testing.T) {
	for want, c := range map[string][2]Bytes{
		"25 GiB with 24 GiB available":                                     {25 * GiB, 24 * GiB},
		"24 GiB, 4 KiB more than is available":                             {24*GiB + 4*KiB, 24 * GiB},
		"24 GiB with 24 GiB available, but no free block was large enough": {24 * GiB, 24 * GiB},
		"23 GiB with 24 GiB available, but no free block was large enough": {23 * GiB, 24 * GiB},
	} {
		if got := Short(c[0], c[1]); got != want {
			t.Errorf("%v: %q", c, got)
		}
	}
}

// TestLack checks that the difference is added only where rounding would hide it.
func TestLack(t *testing.T) {
	for want, c := range map[string][2]Bytes{
		"2 GiB asked for at micro-batch 8, 1 GiB free":                {2 * GiB, GiB},
		"2 GiB asked for at micro-batch 8, 2 GiB free, 4 KiB too few": {2 * GiB, 2*GiB - 4*KiB},
		"an unknown amount asked for at micro-batch 8, 0 B free":      {0, 0},
	} {
		e := OutOfMemoryError{Requested: c[0], Micro: 8, Stats: Stats{Capacity: 24 * GiB, Free: c[1], Reserved: 20 * GiB, Allocated: 20 * GiB}}
		if got := e.Lack(); got != want {
			t.Errorf("%v: %q", c, got)
		}
	}
}

func TestSizedByMicro(t *testing.T) {
	for phase, want := range map[Phase]bool{
		PhaseUnknown: true, PhaseForward: true, PhaseBackward: true,
		PhaseLoad: false, PhaseUpdate: false, PhaseEval: false, PhaseGenerate: false, PhaseCheckpoint: false,
	} {
		if phase.SizedByMicro() != want {
			t.Errorf("%q is sized by the micro-batch: %v, want %v", phase, !want, want)
		}
	}
}

func TestAvailable(t *testing.T) {
	for _, c := range []struct {
		name string
		s    Stats
		want Bytes
	}{
		{"nobody else", Stats{Capacity: 24 * GiB, Free: 20 * GiB, Reserved: 4 * GiB}, 24 * GiB},
		{"others hold some", Stats{Capacity: 24 * GiB, Free: 10 * GiB, Reserved: 4 * GiB, Foreign: 10 * GiB}, 14 * GiB},
		{"the device has more than the limit", Stats{Capacity: 24 * GiB, Free: 70 * GiB, Reserved: 4 * GiB}, 24 * GiB},
		{"nothing is known", Stats{}, 0},
		{"numbers of two moments", Stats{Capacity: 24 * GiB, Free: -5 * GiB, Reserved: 4 * GiB}, 0},
	} {
		if got := c.s.Available(); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

// TestAssumed checks that a failure still gets a verdict if nothing could be measured
// about the memory, and that the numbers assumed in place of measurements are never
// reported.
func TestAssumed(t *testing.T) {
	ranOut := OutOfMemoryError{Requested: 32 * MiB, Phase: PhaseForward, Micro: 8}
	for _, c := range []struct {
		most Bytes
		held Bytes
		want Stats
	}{
		{GiB, 0, Stats{Capacity: GiB, Free: 32*MiB - 1, Allocated: GiB - 32*MiB + 1, Reserved: GiB - 32*MiB + 1}},
		{0, 0, Stats{Capacity: 32*MiB - 1, Free: 32*MiB - 1}},
		{0, GiB, Stats{Capacity: GiB + 32*MiB - 1, Free: 32*MiB - 1, Allocated: GiB, Reserved: GiB}},
		{MiB, 0, Stats{Capacity: 32*MiB - 1, Free: 32*MiB - 1}}, // most has no effect if it is below the request
	} {
		f := ranOut
		f.Stats.Allocated = c.held
		f = f.Assume(c.most)
		if f.Stats != c.want || !f.Assumed || f.Needed() <= f.Stats.Available() {
			t.Errorf("%v of %v: %+v", c.held, c.most, f)
		}
		if v := Diagnose(Evidence{Failure: f}); v.Cause != Batch || v.Why != "32 MiB asked for at micro-batch 8 in forward, more than was free" {
			t.Errorf("%v", v)
		}
		if text := f.Error(); text != "out of memory at micro-batch 8 in forward: 32 MiB asked for" {
			t.Error(text)
		}
		if text := f.Measured(); text.Error() != f.Error() || text.Stats != (Stats{}) {
			t.Errorf("recorded as %+v", text)
		}
		f.Micro = 0
		if v := Diagnose(Evidence{Failure: f}); v.Why != "32 MiB asked for in forward, more than was free; it is not known which micro-batch this was in, if any" {
			t.Errorf("outside a micro-batch: %v", v)
		}
	}
	if f := (OutOfMemoryError{Phase: PhaseForward}).Assume(GiB); f.Assumed || f.Stats != (Stats{}) {
		t.Errorf("with no request known: %+v", f)
	}
}
