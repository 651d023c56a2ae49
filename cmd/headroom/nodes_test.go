package main

import (
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"headroom/runs"
)

// ranked is a script that trains on one of several nodes, as far as the nodes can tell: the steps of all wait for each other, samples follow
// from the step, node 0 saves every third step, and whoever loses the others fails.
const ranked = `import argparse, json, os, signal, sys, time
p = argparse.ArgumentParser()
for name, value in dict(bs=8, accum=1, node=0, of=2, steps=12, fits=8, fail_node=-1, fail_step=-1).items():
    p.add_argument("--" + name.replace("_", "-"), type=int, default=value)
p.add_argument("--resume", default="")
a = p.parse_args()
a.node = int(os.environ.get("SLURM_PROCID", a.node))
attempt = os.environ["HEADROOM_ATTEMPT"]
asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
signal.signal(signal.SIGUSR1, lambda *_: asked.append(1))
first = json.load(open(a.resume))["step"] + 1 if a.resume else 1
os.makedirs("out", exist_ok=True)
os.makedirs("met", exist_ok=True)
print("training", flush=True)

def meet(name):
    open(f"met/{attempt}-{name}-{a.node}", "w").close()
    while not all(os.path.exists(f"met/{attempt}-{name}-{n}") for n in range(a.of)):
        if any(os.path.exists(f"met/{attempt}-{how}-{n}") for n in range(a.of) for how in ("dead", "saved")) or asked and os.path.exists("unheard"):
            sys.exit("RuntimeError: Connection closed by peer")
        time.sleep(0.005)

def ran_out():
    open(f"met/{attempt}-dead-{a.node}", "w").close()
    sys.exit("""Traceback (most recent call last):
  File "train.py", line 12, in <module>
    loss.backward()
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.64 GiB of which 1.10 GiB is free. Including non-PyTorch memory, this process has 22.40 GiB memory in use. Of the allocated memory 21.50 GiB is allocated by PyTorch, and 300.00 MiB is reserved by PyTorch but unallocated.""")

def save(step):
    if a.node == 0:
        json.dump({"step": step}, open("out/.part", "w"))
        os.rename("out/.part", f"out/step-{step}.json")

fails = a.node == a.fail_node and a.bs > a.fits
for step in range(first, a.steps + 1):
    if fails and step == a.fail_step:
        ran_out()
    meet(step)
    share = a.bs * a.accum
    with open(f"samples-{a.node}", "a") as f:
        for i in range(share):
            f.write(f"{attempt} {step} {((step - 1) * a.of + a.node) * share + i} {a.bs}\n")
    meet(f"{step}s")
    if step % 3 == 0 or asked:
        save(step)
    if asked:
        open(f"met/{attempt}-saved-{a.node}", "w").close()
        sys.exit(0)
    if os.path.exists("slow"):
        time.sleep(0.05)
if fails and a.fail_step > a.steps:
    ran_out()
`

// onNode returns headroom with the script, on one of two nodes that share a folder.
func onNode(dir string, node int, gone string, more ...string) *exec.Cmd {
	c := exec.Command("headroom", append([]string{"run", "--name", "two", "--node", fmt.Sprintf("%d/2", node), "--node-gone", gone, "--no-worker", "--trust",
		"--knob", "micro=--bs", "--knob", "accumulation=--accum", "--knob", "resume=--resume", "--knob", "checkpoints=out/step-*.json",
		"--", "python3", "train.py", "--bs", "8", "--accum", "1", "--node", fmt.Sprint(node)}, more...)...)
	c.Dir = dir
	return c
}

// shared returns a folder with the script, and the given empty files.
func shared(t *testing.T, files ...string) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range append(files, "train.py") {
		text := ""
		if name == "train.py" {
			text = ranked
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// allTrained checks that every sample of a run of two nodes was trained once, in whichever attempt counts, and returns the largest micro-batches of
// the attempts, which must be the same on both nodes. A node that was killed may have trained nothing in an attempt.
func allTrained(t *testing.T, dir string, steps int) (plans string) {
	t.Helper()
	type at struct{ node, step int }
	newest, micros := map[at]int{}, [2]map[int]int{{}, {}}
	var lines [][5]int // attempt, step, sample, micro, node
	for node := range 2 {
		text, err := os.ReadFile(filepath.Join(dir, fmt.Sprintf("samples-%d", node)))
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			l := [5]int{4: node}
			if _, err := fmt.Sscan(line, &l[0], &l[1], &l[2], &l[3]); err != nil {
				t.Fatal(err)
			}
			lines = append(lines, l)
			newest[at{node, l[1]}] = max(newest[at{node, l[1]}], l[0])
			micros[node][l[0]] = l[3]
		}
	}
	times := map[int]int{}
	for _, l := range lines {
		if newest[at{l[4], l[1]}] == l[0] {
			times[l[2]]++
		}
	}
	for i := range steps * 16 {
		if times[i] != 1 {
			t.Errorf("sample %d was trained %d times", i, times[i])
		}
	}
	if len(times) != steps*16 {
		t.Errorf("%d samples, want %d", len(times), steps*16)
	}
	for attempt := range 9 {
		one, other := micros[0][attempt], micros[1][attempt]
		if one != other && one > 0 && other > 0 {
			t.Errorf("attempt %d: micro-batch %d on node 0, %d on node 1", attempt, one, other)
		}
		if one > 0 {
			plans += fmt.Sprint(one, " ")
		}
	}
	return plans
}

// TestNodesRunOutOfMemory checks that a node that runs out of memory, at any step, makes both start again with the same smaller micro-batch, from
// the newest checkpoint, and that every sample is trained once. The last step is after the other node is done.
func TestNodesRunOutOfMemory(t *testing.T) {
	const steps = 12
	for i := range 10 {
		node, step := i%2, 2+rand.IntN(steps-1)
		if i == 0 {
			step = steps + 1
		}
		t.Run(fmt.Sprintf("node %d, step %d", node, step), func(t *testing.T) {
			t.Parallel()
			dir := shared(t)
			var both sync.WaitGroup
			for n := range 2 {
				both.Go(func() {
					out, err := onNode(dir, n, "30s", "--fail-node", fmt.Sprint(node), "--fail-step", fmt.Sprint(step), "--fits", "4").CombinedOutput()
					if err != nil {
						t.Errorf("node %d: %v\n%s", n, err, out)
					}
				})
			}
			both.Wait()
			want := "8 4 "
			if step > steps { // nothing is left to train
				want = "8 "
			}
			if got := allTrained(t, dir, steps); got != want {
				t.Errorf("micro-batches %s", got)
			}
			entries, err := runs.ReadJournal(filepath.Join(dir, "runs", "two"))
			if err != nil {
				t.Fatal(err)
			}
			said := ""
			for _, e := range entries {
				said += e.Text + "\n"
			}
			if (node == 1) != strings.Contains(said, "out of memory: on node 1 (") {
				t.Errorf("%s", said)
			}
		})
	}
}

// TestNodeIsKilled checks that a node that is killed for good, with all its processes, ends the run on the other with the status that
// an engine starts it again for, and that the same command on both then continues the run. Afterwards it is finished.
func TestNodeIsKilled(t *testing.T) {
	for lost := range 2 {
		dir := shared(t, "slow", "unheard")
		both := []*process{begin(t, onNode(dir, 0, "5s")), begin(t, onNode(dir, 1, "5s"))}
		for _, p := range both {
			p.hear("training")
		}
		status, err := runs.ReadStatus([]string{filepath.Join(dir, "runs", "two"), filepath.Join(dir, "runs", "two", "nodes", "1")}[lost])
		if err != nil || status.Command == nil {
			t.Fatalf("%+v, %v", status, err)
		}
		both[lost].signal(syscall.SIGKILL)
		_ = syscall.Kill(status.Command.PID, syscall.SIGKILL)
		both[lost].end()
		if got := both[1-lost].end(); got != 75 {
			t.Errorf("status %d\n%s", got, both[1-lost].stderr.String())
		}
		if said := both[1-lost].stderr.String(); !strings.Contains(said, fmt.Sprintf("warning: node %d (", lost)) || !strings.Contains(said, "has not been heard of for 5s") || !strings.Contains(said, "the same command on every node continues the run") {
			t.Error(said)
		}
		again(t, dir, 0, "")
		allTrained(t, dir, 12)
		again(t, dir, 0, "is finished already; another --name makes another run")
	}
}

// again runs the command on both nodes once more. Both must end with a status, and say something.
func again(t *testing.T, dir string, status int, says string, more ...string) {
	t.Helper()
	var both sync.WaitGroup
	for n := range 2 {
		both.Go(func() {
			c := onNode(dir, n, "30s", more...)
			out, _ := c.CombinedOutput()
			if got := c.ProcessState.ExitCode(); got != status || !strings.Contains(string(out), says) {
				t.Errorf("node %d: status %d\n%s", n, got, out)
			}
		})
	}
	both.Wait()
}

// TestNodesAreAskedToStop checks that a request to stop, on one node or on both, ends the run on both with status 75, also by the signal
// with which Slurm announces the end of a job's time, and that the run then continues from what was saved.
func TestNodesAreAskedToStop(t *testing.T) {
	for _, c := range []struct {
		signal syscall.Signal
		nodes  []int
	}{{syscall.SIGTERM, []int{1}}, {syscall.SIGINT, []int{0}}, {syscall.SIGUSR1, []int{0, 1}}} {
		dir := shared(t, "slow", "unheard")
		both := []*process{begin(t, onNode(dir, 0, "12s", "--steps", "60")), begin(t, onNode(dir, 1, "12s", "--steps", "60"))}
		for _, p := range both {
			p.hear("training")
		}
		for _, n := range c.nodes {
			both[n].signal(c.signal)
		}
		for n, p := range both {
			if got := p.end(); got != 75 {
				t.Errorf("%v: node %d: status %d\n%s", c.signal, n, got, p.stderr.String())
			}
		}
		if err := os.Remove(filepath.Join(dir, "slow")); err != nil {
			t.Fatal(err)
		}
		again(t, dir, 0, "", "--steps", "60")
		allTrained(t, dir, 60)
	}
}

// reduced is a script whose ranks meet in a collective of PyTorch's. It trains nothing.
const reduced = `import argparse, json, os, torch, torch.distributed as dist
p = argparse.ArgumentParser()
for name, value in dict(bs=8, accum=1, steps=8, fail_step=5).items():
    p.add_argument("--" + name.replace("_", "-"), type=int, default=value)
p.add_argument("--resume", default="")
a = p.parse_args()
dist.init_process_group("gloo")
rank, world, share = dist.get_rank(), dist.get_world_size(), a.bs * a.accum
first = json.load(open(a.resume))["step"] + 1 if a.resume else 1
os.makedirs("out", exist_ok=True)
for step in range(first, a.steps + 1):
    if rank == 1 and step == a.fail_step and a.bs > 4:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.64 GiB of which 1.10 GiB is free. Including non-PyTorch memory, this process has 22.40 GiB memory in use. Of the allocated memory 21.50 GiB is allocated by PyTorch, and 300.00 MiB is reserved by PyTorch but unallocated.")
    with open(f"samples-{rank}", "a") as f:
        for i in range(share):
            f.write(f"{os.environ['HEADROOM_ATTEMPT']} {step} {((step - 1) * world + rank) * share + i} {a.bs}\n")
    dist.all_reduce(torch.ones(1))
    if rank == 0 and step % 3 == 0:
        json.dump({"step": step}, open("out/.part", "w"))
        os.rename("out/.part", f"out/step-{step}.json")
dist.destroy_process_group()
`

// TestNodesWithTorchrun is a torchrun on each of two nodes, as its own options say. One rank runs out of memory, and the other loses it: both
// launchers are started again with the same plan.
func TestNodesWithTorchrun(t *testing.T) {
	python := pythonWithTorch(t)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "train.py"), []byte(reduced), 0o600); err != nil {
		t.Fatal(err)
	}
	port := freePort(t)
	var both sync.WaitGroup
	for n := range 2 {
		both.Go(func() {
			c := exec.Command("headroom", "run", "--name", "two", "--node-gone", "60s", "--no-worker", "--trust",
				"--knob", "micro=--bs", "--knob", "accumulation=--accum", "--knob", "resume=--resume", "--knob", "checkpoints=out/step-*.json",
				"--", python, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1", fmt.Sprintf("--node-rank=%d", n), "--master-addr=127.0.0.1", fmt.Sprintf("--master-port=%d", port),
				"train.py", "--bs", "8", "--accum", "1")
			c.Dir, c.Env = dir, append(os.Environ(), "OMP_NUM_THREADS=1", "GLOO_SOCKET_IFNAME=lo")
			if out, err := c.CombinedOutput(); err != nil {
				t.Errorf("node %d: %v\n%s", n, err, out)
			}
		})
	}
	both.Wait()
	if got := allTrained(t, dir, 8); got != "8 4 " {
		t.Errorf("micro-batches %s", got)
	}
}

// freePort returns a TCP port of this machine that nothing listens on.
func freePort(t *testing.T) uint16 {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return netip.MustParseAddrPort(l.Addr().String()).Port()
}
