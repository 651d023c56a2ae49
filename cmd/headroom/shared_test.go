package main

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// sharing is a script of which two runs save to one folder. The one called A saves, waits for the
// file go, saves again and runs out of memory; the one called B saves and waits for ever. Each
// writes its files elsewhere and moves them there, so that nobody can be seen to write them.
const sharing = `import argparse, json, os, signal, sys, time
p = argparse.ArgumentParser()
p.add_argument("--bs", type=int); p.add_argument("--acc", type=int); p.add_argument("--from", dest="start"); p.add_argument("--who", default="A")
a = p.parse_args()
def save(step):
    with open(f"{a.who}.part", "w") as f:
        json.dump({"step": step}, f)
    os.replace(f"{a.who}.part", f"out/{a.who}-{step}.json")
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

// sharingRun returns the command that runs the script under headroom.
func sharingRun(name, checkpoints string, more ...string) *exec.Cmd {
	return exec.Command("headroom", append([]string{"run", "--name", name, "--trust", "--knob", "micro=--bs", "--knob", "accumulation=--acc", "--knob", "resume=--from",
		"--knob", "checkpoints=" + checkpoints, "--", "python3", "train.py", "--bs", "8", "--acc", "1"}, more...)...)
}

// hear reads what the command prints, up to the given line.
func (p *process) hear(line string) {
	p.t.Helper()
	for p.lines.Scan() {
		if p.lines.Text() == line {
			return
		}
	}
	p.t.Fatalf("no %q\n%s", line, p.stderr.String())
}

// TestFolderSharedLater checks that a run does not resume from what another run may have written
// that came later and reaches the same folder by another name.
func TestFolderSharedLater(t *testing.T) {
	for _, pattern := range []string{"link/*.json", "*/B*.json"} {
		inEmptyFolder(t, "train.py", sharing)
		if err := os.Symlink("out", "link"); err != nil {
			t.Fatal(err)
		}
		a := begin(t, sharingRun("a", "out/*.json"))
		a.hear("saved")
		b := begin(t, sharingRun("b", pattern, "--who", "B"))
		b.hear("saved")
		if err := os.WriteFile("go", nil, 0o600); err != nil {
			t.Fatal(err)
		}
		a.hear("from out/A-1.json")
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

// TestFileOfAnotherJob checks that a run does not resume from a file that another program has
// written to its folder meanwhile; and that it does not resume at all if it is not known whose
// the file is.
func TestFileOfAnotherJob(t *testing.T) {
	for _, open := range []bool{true, false} {
		inEmptyFolder(t, "train.py", sharing)
		a := begin(t, sharingRun("a", "out/*.json"))
		a.hear("saved")
		at := "out/C-9.json"
		if !open {
			at = "C.part" // moved later: nobody can be seen to write it
		}
		f, err := os.Create(at)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteString("{}"); err != nil {
			t.Fatal(err)
		}
		if !open {
			ahead := time.Now().Add(time.Second) // newer than what the script saves next
			if err := errors.Join(f.Close(), os.Chtimes(at, ahead, ahead), os.Rename(at, "out/C-9.json")); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile("go", nil, 0o600); err != nil {
			t.Fatal(err)
		}
		want, status := "warning: not used: out/C-9.json: ", 0
		if open {
			a.hear("from out/A-2.json")
		} else {
			for a.lines.Scan() {
			}
			want, status = "headroom: ! cannot resume: out/C-9.json: out/A-2.json was written during this run, too, and it is not known which of them is this run's; name its checkpoints alone with --knob checkpoints=PATTERN", 5
		}
		if got, said := a.end(), a.stderr.String(); got != status || !strings.Contains(said, want) {
			t.Errorf("open: %v: status %d\n%s", open, got, said)
		}
		_ = f.Close()
	}
}
