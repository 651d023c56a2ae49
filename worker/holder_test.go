package worker

import (
	"encoding/json"
	"os/exec"
	"strings"
	"testing"

	"headroom/memory"
)

// TestHolderSaysTheSame checks that a process without headroom says what holds memory in the words that
// headroom uses.
func TestHolderSaysTheSame(t *testing.T) {
	full := memory.Holder{Kind: "collected", Name: "seen", Kept: "train.py:7", Made: "train.py:12", Tensors: 49, Bytes: 2900 * memory.MiB, Rate: 1, PerStep: 60*memory.MiB + 300*memory.KiB, Cure: "empty `seen`"}
	holders := []memory.Holder{full}
	for _, change := range []func(*memory.Holder){
		func(h *memory.Holder) { h.Graph, h.Rate, h.Made = true, 2.6, h.Kept },
		func(h *memory.Holder) { h.Name, h.Kept, h.Tensors, h.Rate, h.Cure = "", "", 1, 0.2, "" },
		func(h *memory.Holder) { h.Kind, h.Rate = "numpy", 0 },
		func(h *memory.Holder) { h.Kind = "sum" },
		func(h *memory.Holder) { h.Kind = "hidden-state" },
		func(h *memory.Holder) { h.Kind = "gradients" },
		func(h *memory.Holder) { h.Kind = "workers" },
		func(h *memory.Holder) { h.Kind, h.Tensors = "workers", 1 },
		func(h *memory.Holder) { *h = memory.Holder{Kind: "elsewhere", PerStep: memory.MiB} },
	} {
		h := full
		change(&h)
		holders = append(holders, h)
	}
	facts, err := json.Marshal(holders)
	if err != nil {
		t.Fatal(err)
	}
	const says = `
import json, sys, types
package = types.ModuleType("headroom_train.account")
package.__path__ = ["python/headroom_train/account"]  # without its __init__, which needs torch
sys.modules["headroom_train"], sys.modules[package.__name__] = types.ModuleType("headroom_train"), package
from headroom_train.account.kinds import Holder
for facts in json.loads(sys.argv[1]):
    known = {"name": "", "kept": "", "made": "", "tensors": 0, "rate": 0.0, "cure": ""}
    print(Holder(**{**known, **facts}))
`
	out, err := exec.Command(anyPython(t).program, "-c", says, string(facts)).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	if len(lines) != len(holders) {
		t.Fatalf("%d lines: %s", len(lines), out)
	}
	for i, h := range holders {
		if lines[i] != h.String() {
			t.Errorf("a process says\n%s\nand headroom\n%s", lines[i], h.String())
		}
	}
}
