package main

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// sharing is a script of which two runs save to one folder. The one called A saves, waits for the
// file go, saves again and runs out of memory; the one called B saves and waits for ever.
const sharing = `import argparse, json, os, signal, sys, time
p = argparse.ArgumentParser()
p.add_argument("--bs", type=int); p.add_argument("--acc", type=int); p.add_argument("--from", dest="start"); p.add_argument("--who", default="A")
a = p.parse_args()
def save(step):
    json.dump({"step": step}, open(f"out/{a.who}-{step}.json", "w"))
if a.start:
    print("from", a.start, flush=True)
    sys.exit()
os.makedirs("out", exist_ok=True)
save(1)
print("saved", flush=True)
if a.who == "B":
    signal.pause()
while not os.path.exists("go"):
    time.sleep(0.01)
save(2)
print("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.25 GiB of which 1.10 GiB is free. Of the allocated memory 77.50 GiB is allocated by PyTorch, and 100.00 MiB is reserved by PyTorch but unallocated.", file=sys.stderr)
sys.exit(5)
`

// TestFolderSharedLater checks that a run does not resume from what another run may have written
// that came later and reaches the same folder by another name.
func TestFolderSharedLater(t *testing.T) {
	for _, pattern := range []string{"link/*.json", "*/B*.json"} {
		inEmptyFolder(t, "train.py", sharing)
		if err := os.Symlink("out", "link"); err != nil {
			t.Fatal(err)
		}
		wrap := func(name, checkpoints string, more ...string) *exec.Cmd {
			return exec.Command("headroom", append([]string{"run", "--name", name, "--trust", "--knob", "micro=--bs", "--knob", "accumulation=--acc", "--knob", "resume=--from",
				"--knob", "checkpoints=" + checkpoints, "--", "python3", "train.py", "--bs", "8", "--acc", "1"}, more...)...)
		}
		until := func(p *process, text string) {
			t.Helper()
			for p.lines.Scan() {
				if p.lines.Text() == text {
					return
				}
			}
			t.Fatalf("no %q\n%s", text, p.stderr.String())
		}
		a := begin(t, wrap("a", "out/*.json"))
		until(a, "saved")
		b := begin(t, wrap("b", pattern, "--who", "B"))
		until(b, "saved")
		if err := os.WriteFile("go", nil, 0o600); err != nil {
			t.Fatal(err)
		}
		until(a, "from out/A-1.json")
		if status := a.end(); status != 0 {
			t.Errorf("status %d", status)
		}
		if said := a.stderr.String(); !strings.Contains(said, "warning: not used: out/A-2.json (and 1 more): perhaps written by another headroom run (b, process ") {
			t.Errorf("%s", said)
		}
		b.signal(syscall.SIGTERM)
		b.end()
		if said := b.stderr.String(); !strings.Contains(said, "warning: another headroom run (a, process ") {
			t.Errorf("%s", said)
		}
	}
}
