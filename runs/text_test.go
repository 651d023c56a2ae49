package runs

import (
	"testing"

	"headroom/memory"
)

// TestSentences checks the sentences about a failure inside a process, and that an entry of an
// earlier version, which has only its text, keeps it.
func TestSentences(t *testing.T) {
	oom := &memory.OutOfMemoryError{Requested: memory.GiB, Phase: memory.PhaseForward, Micro: 40}
	because := func(c memory.Cause) *memory.Verdict { return &memory.Verdict{Cause: c, Why: "so it is"} }
	wrong := "out of memory at micro-batch 40 in forward: 1 GiB asked for (train.py:31); "
	for want, e := range map[string]Entry{
		wrong + "survived in place: 40 rows in 4 pieces":                                                                 {InPlace: &InPlace{Way: WayPieces, Rows: 40, Pieces: 4}, Verdict: because(memory.Batch)},
		wrong + "survived in place: 40 rows in 4 pieces; so it is":                                                       {InPlace: &InPlace{Way: WayPieces, Rows: 40, Pieces: 4}, Verdict: because(memory.Leak)},
		wrong + "survived in place: 40 rows in 4 pieces, each computed twice (no sum)":                                   {InPlace: &InPlace{Way: WayTwoPass, Rows: 40, Pieces: 4, Why: "no sum"}},
		wrong + "survived in place: the same call again (no batch)":                                                      {InPlace: &InPlace{Way: WayCall, Why: "no batch"}, Verdict: because(memory.Model)},
		wrong + "survived in place: the same call again, with saved tensors on the host (no batch)":                      {InPlace: &InPlace{Way: WayHost, Why: "no batch"}, Verdict: because(memory.Unknown)},
		wrong + "survived in place: the same again, with memory of the host for what does not fit on the GPU (no batch)": {InPlace: &InPlace{Way: WaySpill, Why: "no batch"}, Verdict: because(memory.Model)},
		wrong + "survived in place: the whole batch again (no batch); so it is":                                          {InPlace: &InPlace{Way: WayBatch, Why: "no batch"}, Verdict: because(memory.Foreign)},
		wrong + "survived in place: the optimizer's step again":                                                          {InPlace: &InPlace{Way: WayStep}},
		wrong + "survived in place: the step was finished":                                                               {InPlace: &InPlace{}},
		wrong + "left to the command's own code: no reason":                                                              {Refusal: &Refusal{Why: "no reason"}},
	} {
		e.OOM, e.Where = oom, "train.py:31"
		if got := e.Told().Text; got != want {
			t.Errorf("%s\nwant %s", got, want)
		}
	}
	for want, a := range map[string]Attached{
		"attached to python 3.11 (pid 7, torch 2.11, armed)":                              {Python: "3.11", PID: 7, Torch: "2.11", Mode: "armed", World: 1},
		"attached to python 3 (pid 7, torch 2, armed), rank 1 of 2, only watching: ranks": {Python: "3", PID: 7, Torch: "2", Mode: "armed", Rank: 1, World: 2, Watches: "ranks"},
	} {
		if got := (Entry{Attached: &a}).Told().Text; got != want {
			t.Errorf("%s\nwant %s", got, want)
		}
	}
	for _, old := range []Entry{{Text: "all there is"}, {Text: "all there is", OOM: oom}, {Text: "all there is", InPlace: &InPlace{}}} {
		if old.Wrong() != "all there is" || old.Details() != "all there is" || old.Left() != "" || (Entry{Text: old.Text}).Told().Text != old.Text {
			t.Errorf("%+v: %q, %q", old, old.Wrong(), old.Details())
		}
	}
	bare := Entry{OOM: &memory.OutOfMemoryError{Requested: memory.GiB}, Refusal: &Refusal{Why: "no reason"}}
	if bare.Wrong() != "out of memory: 1 GiB asked for" || bare.Details() != "1 GiB asked for" {
		t.Errorf("%q, %q", bare.Wrong(), bare.Details())
	}
}
