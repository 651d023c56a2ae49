package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"headroom/memory"
	"headroom/runs"
)

// accountsOf returns entries with accounts, each as "pid device step when", one second apart.
func accountsOf(texts ...string) (all []runs.Entry) {
	for i, text := range texts {
		f := strings.Fields(text)
		b := memory.Breakdown{Device: f[1], PID: int(f[0][0] - '0'), Step: int(f[2][0] - '0'), When: memory.When(f[3]), Total: 4 * memory.MiB,
			Shares: []memory.Share{{Kind: memory.Weights, Bytes: memory.MiB}, {Kind: memory.Others, Bytes: memory.MiB, PID: 77, Name: "python"}, {Kind: memory.Unused, Bytes: 2 * memory.MiB}}}
		all = append(all, runs.Entry{Kind: runs.KindMemory, Time: time.Date(2030, 1, 2, 3, 4, i, 0, time.UTC), Breakdown: &b})
	}
	return all
}

// TestExplainOfAnEndedRun checks that headroom explain RUN shows the last account of a run that has
// ended, with what was found to hold memory.
func TestExplainOfAnEndedRun(t *testing.T) {
	inEmptyFolder(t, "endless.yaml", endless)
	entries := append(accountsOf("1 cuda:0 4 grows", "1 cuda:0 7 failed"), runs.Entry{Kind: runs.KindWarning, Holder: &memory.Holder{Kind: "collected", Name: "seen", Kept: "train.py:7", Tensors: 40, Bytes: memory.GiB, Rate: 1, PerStep: memory.MiB, Cure: "empty it"}})
	for name, all := range map[string][]runs.Entry{"a": entries, "b": nil} {
		var text strings.Builder
		for _, e := range all {
			line, err := json.Marshal(e)
			if err != nil {
				t.Fatal(err)
			}
			text.WriteString(string(line) + "\n")
		}
		if err := os.MkdirAll("runs/"+name, 0o755); err != nil {
			t.Fatal(err)
		}
		for file, text := range map[string]string{"run.yaml": "", "journal.jsonl": text.String(), "status.json": `{"state": "failed"}`} {
			if err := os.WriteFile(filepath.Join("runs", name, file), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	out, err := exec.Command("headroom", "explain", "a").Output()
	at := time.Date(2030, 1, 2, 3, 4, 1, 0, time.UTC).Local().Format(time.DateTime)
	want := "memory of cuda:0, as process 1 uses it, when step 7 ran out of memory, at " + at + `:
  weights          1 MiB  25.0 %
  python (pid 77)  1 MiB  25.0 %
  free             2 MiB  50.0 %
  total            4 MiB
memory grows by 1 MiB per step: ` + "`seen` (train.py:7)" + ` holds 40 tensors, 1 GiB, one more every step; empty it
`
	if err != nil || string(out) != want {
		t.Errorf("%v\n%s\nwant:\n%s", err, out, want)
	}
	out, err = exec.Command("headroom", "explain", "--json", "a").Output()
	var h holding
	if err != nil || json.Unmarshal(out, &h) != nil || h.Run != "a" || h.State != runs.StateFailed || len(h.Memory) != 1 || h.Memory[0].Step != 7 || h.Holder == nil || h.Holder.Name != "seen" {
		t.Errorf("%v\n%s", err, out)
	}
	out, err = exec.Command("headroom", "explain", "b").Output()
	if err != nil || !strings.HasPrefix(string(out), "no account of the memory of b was taken: ") {
		t.Errorf("%v\n%s", err, out)
	}
}

// holdsMemory trains until the file "stop" is there, and keeps a tensor of a MiB from each of its first
// 50 steps.
const holdsMemory = `
import os, torch
net = torch.nn.Linear(512, 512)
opt = torch.optim.Adam(net.parameters())
kept, step = [], 0
while not os.path.exists("stop"):
    opt.zero_grad()
    net(torch.ones(8, 512)).square().mean().backward()
    opt.step()
    if step < 50:
        kept.append(torch.ones(1 << 18))
    step += 1
    if step == 60:
        open("ready", "w").close()
`

// TestExplainOfALiveRun checks that a run in progress can be asked what its memory is held for, and
// that it goes on.
func TestExplainOfALiveRun(t *testing.T) {
	python := pythonWithTorch(t)
	inEmptyFolder(t, "train.py", holdsMemory)
	run := exec.Command("headroom", "run", "--name", "live", "--", python, "train.py")
	if err := run.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- run.Wait() }()
	for at := time.Now(); ; {
		if _, err := os.Stat("ready"); err == nil {
			break
		}
		select {
		case err := <-ended:
			t.Fatalf("the run ended: %v", err)
		case <-time.After(20 * time.Millisecond):
		}
		if time.Since(at) > time.Minute {
			t.Fatal("no step was made")
		}
	}
	out, err := exec.Command("headroom", "explain", "--json", "live").Output()
	if failed := os.WriteFile("stop", nil, 0o644); failed != nil {
		t.Error(failed)
	}
	if ended := <-ended; ended != nil {
		t.Errorf("the run: %v", ended)
	}
	var h holding
	if err != nil || json.Unmarshal(out, &h) != nil || h.Asked != 1 || h.Answered != 1 || len(h.Memory) != 1 {
		t.Fatalf("%v\n%s", err, out)
	}
	b := h.Memory[0].Breakdown
	const weights = (512*512 + 512) * 4
	if b.Device != memory.OnHost || b.When != memory.WhenAsked || b.Step < 60 {
		t.Errorf("%+v", b)
	}
	for kind, want := range map[memory.Kind]memory.Bytes{memory.Weights: weights, memory.Gradients: weights, memory.Optimizer: 2 * weights, memory.Kept: 50 * memory.MiB} {
		if got := b.Of(kind); got < want || got > want+memory.MiB/8 {
			t.Errorf("%v: %v, want %v", kind, got, want)
		}
	}
	sum := memory.Bytes(0)
	for _, s := range b.Shares {
		sum += s.Bytes
	}
	if sum != b.Total {
		t.Errorf("%v add up to %v: %+v", sum, b.Total, b)
	}
}
