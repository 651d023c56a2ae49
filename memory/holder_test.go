package memory

import (
	"strings"
	"testing"
)

func TestHolder(t *testing.T) {
	seen := Holder{Kind: "collected", Name: "seen", Kept: "train.py:7", Made: "train.py:12", Step: 49, Tensors: 49, Bytes: 2900 * MiB, Rate: 1, PerStep: 60 * MiB, Cure: "write `seen.append(loss.item())`"}
	with := func(change func(h *Holder)) Holder {
		h := seen
		change(&h)
		return h
	}
	for _, c := range []struct {
		holder Holder
		want   string
	}{
		{seen, "memory grows by 60 MiB per step: `seen` (train.py:7) holds 49 tensors, 2.8 GiB after step 49, one more every step, made at train.py:12; write `seen.append(loss.item())`"},
		{with(func(h *Holder) { h.Made, h.Graph, h.Rate, h.Step = h.Kept, true, 2.6, 0 }), "`seen` (train.py:7) holds 49 tensors with the graphs that made them, 2.8 GiB, 3 more every step; write"},
		{with(func(h *Holder) { h.Name, h.Rate, h.Tensors = "", 0.2, 1 }), ": a container without a name (train.py:7) holds 1 tensor, 2.8 GiB after step 49, one more every 5 steps, made"},
		{with(func(h *Holder) { h.Kind, h.Kept = "numpy", "" }), "`seen` holds 49 arrays, 2.8 GiB"},
		{with(func(h *Holder) { h.Kind, h.Name = "sum", "total" }), "`total` (train.py:7) holds the graphs of all steps, 2.8 GiB, made at"},
		{with(func(h *Holder) { h.Kind, h.Name = "gradients", "critic" }), "`critic` (train.py:7) holds gradients with the graphs of all steps, 2.8 GiB, made at"},
		{with(func(h *Holder) { h.Ends, h.Seconds = 294, 3.5*3600 }), "made at train.py:12; at that rate memory runs out in about 3 h 30 min, near step 294; write"},
		{with(func(h *Holder) { h.Ends, h.Seconds = 294, 25*3600 }), "made at train.py:12; write"},
		{with(func(h *Holder) { h.Ends = 294 }).At(60), "made at train.py:12; write"},
		{seen.At(60), "`seen` (train.py:7) holds about 60 tensors, about 3.5 GiB after step 60, one more every step"},
		{with(func(h *Holder) { h.Kind, h.Rate = "sum", 1.2 }).At(54), "holds the graphs of all steps, about 3.1 GiB, made"},
		{seen.At(49), "holds 49 tensors, 2.8 GiB after step 49"},
		{with(func(h *Holder) { h.Step = 0 }).At(60), "holds 49 tensors, 2.8 GiB, one"},
		{with(func(h *Holder) { h.Kind, h.Made, h.Tensors, h.Rate = "workers", "", 4, 0 }), "`seen` (train.py:7) holds what 4 loader workers have loaded, 2.8 GiB; write"},
		{with(func(h *Holder) { h.Kind, h.Made, h.Tensors, h.Rate = "workers", "", 1, 0 }).At(50), "holds what a loader worker has loaded, about 2.9 GiB; write"},
		{with(func(h *Holder) { h.Kind, h.Unit, h.Ends, h.Seconds = "evaluation", "model call", 90, 30 }), "memory grows by 60 MiB per model call: `seen` (train.py:7) holds 49 tensors, 2.8 GiB after model call 49, one more every model call, made at train.py:12; at that rate memory runs out in about a minute, near model call 90; write"},
		{with(func(h *Holder) { h.Unit, h.Rate = "model call", 0.5 }).At(60), "holds 49 tensors, 2.8 GiB after model call 49, one more every 2 model calls"}, // steps do not count those
		{Holder{Kind: "elsewhere", Step: 9, PerStep: MiB}.At(60), "what holds it was not found"},
		{Holder{Kind: "unseen", PerStep: MiB, Cure: "read the script"}, "memory grows by 1 MiB per step: it ran out before it could be seen what holds it; read the script"},
		{Holder{Kind: "elsewhere", PerStep: MiB}, "memory grows by 1 MiB per step: what holds it was not found among what Python can see"},
	} {
		if got := c.holder.String(); !strings.Contains(got, c.want) {
			t.Errorf("%s\nwant %s", got, c.want)
		}
	}
	if got := (Holder{}).Hint(); !strings.HasPrefix(got, "find what keeps memory") || seen.Hint() != seen.Cure {
		t.Errorf("%q, %q", got, seen.Hint())
	}
}
