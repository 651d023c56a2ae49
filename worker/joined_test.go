package worker

import (
	"testing"

	"headroom/memory"
)

func TestJoined(t *testing.T) {
	kept := Finding{Rule: "kept-tensor", File: "train.py", Line: 14, Name: "seen", Why: "seen keeps y", Instead: "seen.append((y.detach().cpu(), step))"}
	other := Finding{Rule: "gradients-not-released", File: "train.py", Line: 14, Instead: "opt.zero_grad()"}
	holder := memory.Holder{Kind: "collected", Name: "seen", Kept: "/work/train.py:14", Made: "/work/train.py:12", Cure: "keep numbers, with `.item()`"}
	with := func(change func(h *memory.Holder)) memory.Holder {
		h := holder
		change(&h)
		return h
	}
	at := func(f Finding, change func(f *Finding)) Finding {
		change(&f)
		return f
	}
	const instead = "in place of line 14: seen.append((y.detach().cpu(), step))"
	for name, c := range map[string]struct {
		holder memory.Holder
		found  []Finding
		same   int
		cure   string
	}{
		"the line that keeps":             {holder, []Finding{other, kept}, 1, instead},
		"the line that made":              {holder, []Finding{at(kept, func(f *Finding) { f.Line = 12 })}, 0, "in place of line 12: " + kept.Instead},
		"an absolute file":                {holder, []Finding{at(kept, func(f *Finding) { f.File = "/work/train.py" })}, 0, instead},
		"a relative place":                {with(func(h *memory.Holder) { h.Kept = "train.py:14" }), []Finding{kept}, 0, instead},
		"the variable":                    {with(func(h *memory.Holder) { h.Kept, h.Name = "train.py:20", "seen['y']" }), []Finding{kept}, 0, instead},
		"another variable":                {with(func(h *memory.Holder) { h.Kept, h.Name = "train.py:20", "seen_too" }), []Finding{kept}, -1, holder.Cure},
		"another file":                    {with(func(h *memory.Holder) { h.Kept, h.Made = "/work/lib/train.py:14", "" }), []Finding{kept}, -1, holder.Cure},
		"another line of the number":      {with(func(h *memory.Holder) { h.Kept, h.Made, h.Name = "/work/train.py:141", "", "x" }), []Finding{kept}, -1, holder.Cure},
		"a rule about something else":     {holder, []Finding{other}, -1, holder.Cure},
		"a kind of which no rule is":      {with(func(h *memory.Holder) { h.Kind = "traceback" }), []Finding{kept}, -1, holder.Cure},
		"the process names the statement": {with(func(h *memory.Holder) { h.Cure = "write `seen.append(y.detach())`" }), []Finding{kept}, 0, "write `seen.append(y.detach())`"},
		"an evaluation":                   {with(func(h *memory.Holder) { h.Kind, h.Cure = "evaluation", "evaluate inside `with torch.no_grad():`" }), []Finding{kept}, 0, "evaluate inside `with torch.no_grad():`"},
		"another evaluation of the file":  {with(func(h *memory.Holder) { h.Kind, h.Name = "evaluation", "x" }), []Finding{{Rule: "evaluation-with-gradients", File: "train.py", Line: 90}}, -1, holder.Cure},
		"a rule about a call":             {with(func(h *memory.Holder) { h.Kind, h.Cure = "retained-graph", "leave out `retain_graph=True`" }), []Finding{{Rule: "retained-graph", File: "train.py", Line: 13, Instead: "loss.backward()"}}, 0, "leave out `retain_graph=True`"},
		"nothing read":                    {holder, nil, -1, holder.Cure},
	} {
		got, same := Joined(c.holder, c.found, "/work")
		if want := with(func(h *memory.Holder) { *h = c.holder; h.Cure = c.cure }); got != want || same != c.same {
			t.Errorf("%s: %d, %q", name, same, got.Cure)
		}
	}
}
