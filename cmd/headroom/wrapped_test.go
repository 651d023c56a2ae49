package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"headroom/cmd/headroom/ui"
	"headroom/configs"
	"headroom/job"
	"headroom/runs"
	"headroom/wrap"
	"headroom/wrap/child"
	"headroom/wrap/command"
)

// obstinate is a script that reports that it is running and which signals it receives,
// and leaves a grandchild behind.
const obstinate = `trap "echo heard TERM; exit $1" TERM
trap 'echo heard USR1' USR1
(trap '' TERM; exec sleep 1000) &
echo $! > grandchild
echo running
while :; do sleep 0.05; done
`

// lives reports whether a process exists, and is not merely waiting to be reaped.
func lives(pid int) bool {
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	return err == nil && !strings.Contains(string(text), ") Z ")
}

// TestWrappedCommandIsSignalled checks that signals reach the command; that its status is
// passed on, except that a job that was asked to end is not reported as done; and that no
// descendant of the command outlives the run, unless headroom is killed.
func TestWrappedCommandIsSignalled(t *testing.T) {
	for _, c := range []struct {
		name    string
		signals []syscall.Signal
		heard   string
		ends    string // status with which it exits on SIGTERM
		status  int
		state   runs.State
	}{
		{"asked to end", []syscall.Signal{syscall.SIGUSR1, syscall.SIGTERM}, "heard TERM", "9", 9, runs.StateInterrupted},
		{"asked to end, and saves", []syscall.Signal{syscall.SIGUSR1, syscall.SIGTERM}, "heard TERM", "0", 75, runs.StateInterrupted},
		{"headroom is killed", []syscall.Signal{syscall.SIGKILL}, "", "9", -1, runs.StateStale},
	} {
		t.Run(c.name, func(t *testing.T) {
			inEmptyFolder(t, "obstinate.sh", obstinate)
			p := begin(t, exec.Command("headroom", "run", "--name", "wrapped", "--", "sh", "obstinate.sh", c.ends))
			said := ""
			for _, s := range append([]syscall.Signal{0}, c.signals...) {
				if s != 0 {
					p.signal(s)
				}
				if s == syscall.SIGKILL || s == syscall.SIGTERM {
					break
				}
				if !p.lines.Scan() {
					t.Fatalf("it ended after %q\n%s", said, p.stderr.String())
				}
				said += p.lines.Text() + "\n"
			}
			text, err := os.ReadFile("grandchild")
			if err != nil {
				t.Fatal(err)
			}
			grandchild, err := strconv.Atoi(strings.TrimSpace(string(text)))
			if err != nil {
				t.Fatal(err)
			}
			for p.lines.Scan() {
				said += p.lines.Text() + "\n"
			}
			if got := p.end(); got != c.status || !strings.Contains(said, c.heard) || c.heard != "" && !strings.Contains(said, "heard USR1") {
				t.Errorf("status %d, want %d; said %q\n%s", got, c.status, said, p.stderr.String())
			}
			if s, err := runs.ReadStatus(filepath.Join("runs", "wrapped")); err != nil || s.State != c.state {
				t.Errorf("%+v, %v", s, err)
			}
			if c.status >= 0 && lives(grandchild) {
				t.Error("a grandchild outlived the run")
			}
			_ = syscall.Kill(grandchild, syscall.SIGKILL)
		})
	}
}

// TestDiesOfCtrlC checks that headroom dies of SIGINT if the command does, because a shell goes on
// with a loop otherwise, and that it passes on the status of a command that exits by itself.
func TestDiesOfCtrlC(t *testing.T) {
	for script, want := range map[string]syscall.Signal{
		"kill -INT $PPID; exec sleep 60":                                          syscall.SIGINT,
		"trap 'exit 130' INT; kill -INT $PPID; while :; do sleep 0.01; done":      0,
		"trap 'kill -TERM $$' INT; kill -INT $PPID; while :; do sleep 0.01; done": 0,
	} {
		inEmptyFolder(t, "train.sh", script)
		c := exec.Command("headroom", "run", "--", "sh", "train.sh")
		_ = c.Run() // its status is what is tested
		ended, ok := c.ProcessState.Sys().(syscall.WaitStatus)
		if died := max(0, ended.Signal()); !ok || died != want { // Signal is -1 if it exited
			t.Errorf("%s: %v", script, c.ProcessState)
		}
	}
}

// TestSecrets checks that a command's secrets are in no file of its run but one, which only the user
// may read, although the command prints them in its error, and that the run can be continued.
func TestSecrets(t *testing.T) {
	inEmptyFolder(t, "train.py", "")
	if err := os.WriteFile("train", []byte("#!/bin/sh\necho start \"$DB_PASSWORD\" \"$6\" >>starts\n[ $(grep -c . starts) = 2 ] && exit 0\necho \"ValueError: bad key $6\" >&2; exit 3\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	old := syscall.Umask(0)
	defer syscall.Umask(old)
	run := []string{"run", "--name", "s", "--trust", "--knob", "micro=--bs", "--knob", "accumulation=--accum", "--verbose", "--", "env", "DB_PASSWORD=pw_SECRET", "./train", "--bs", "8", "--accum", "1", "--wandb-key", "SECRETARG"}
	said, _ := exec.Command("headroom", run...).CombinedOutput()
	dir := filepath.Join("runs", "s")
	for _, words := range [][]string{{"report", "s"}, {"explain", "--json", filepath.Join(dir, "run.yaml")}, {"explain", filepath.Join(dir, "run.yaml")}, {"status", "--json", "s"}} {
		text, err := exec.Command("headroom", words...).CombinedOutput()
		if err != nil || strings.Contains(string(text), "SECRET") {
			t.Errorf("%q: %v\n%s", words, err, text)
		}
	}
	found := 0
	err := filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		if err != nil || e.IsDir() || strings.HasPrefix(e.Name(), "output-") { // the command's own
			return err
		}
		text, err := os.ReadFile(path)
		if !strings.Contains(string(text), "SECRET") {
			return err
		}
		found++
		if info, err := e.Info(); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s has a secret: %v, %v", path, info.Mode(), err)
		}
		return err
	})
	if err != nil || found != 1 {
		t.Errorf("%d files with secrets, %v\n%s", found, err, said)
	}
	if said, err := exec.Command("headroom", "resume", "s").CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, said)
	}
	if starts, _ := os.ReadFile("starts"); string(starts) != strings.Repeat("start pw_SECRET SECRETARG\n", 2) {
		t.Errorf("it was started as %q", starts)
	}
}

// TestRunsRemoved checks that a command is started again after a failure although the folder of all
// runs was removed in the meantime, and that its run can be continued: whether the folder went at
// once, or file by file while headroom was writing to it.
func TestRunsRemoved(t *testing.T) {
	for _, remove := range []string{"mv runs removed$2", "rm -rf runs"} {
		inEmptyFolder(t, "oom.txt", `Traceback (most recent call last):
  File "/work/train.py", line 14, in forward
    return self.fc(x)
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.25 GiB of which 1.10 GiB is free. Process 71 has 78.14 GiB memory in use. Of the allocated memory 77.50 GiB is allocated by PyTorch, and 100.00 MiB is reserved by PyTorch but unallocated.
`)
		if err := os.WriteFile("train", []byte("#!/bin/sh\n[ $2 -le 16 ] && exit 0\n"+remove+"; cat oom.txt >&2; exit 1\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		c := exec.Command("headroom", "run", "--name", "gone", "--trust", "--knob", "micro=--bs", "--knob", "accumulation=--accum", "--", "./train", "--bs", "64", "--accum", "1")
		said, err := c.CombinedOutput()
		if err != nil || !strings.Contains(string(said), "micro-batch 32 → 16") {
			t.Errorf("%s: %v\n%s", remove, err, said)
		}
		some, again := strings.Count(string(said), "was removed while"), strings.Count(string(said), "was made again")
		if again != 2 && strings.HasPrefix(remove, "mv") || some < 2 { // file by file, the lock may be made again before the rest goes
			t.Errorf("%s: it is said %d times that something was removed, %d times that it was the folder\n%s", remove, some, again, said)
		}
		dir := filepath.Join("runs", "gone")
		s, err := runs.ReadStatus(dir)
		kept, failed := readKept(dir)
		if err != nil || failed != nil || s.State != runs.StateDone || s.Failures != 2 || len(kept.Args) != 5 {
			t.Errorf("%s: %v, %v, %+v, %q\n%s", remove, err, failed, s, kept.Args, said)
		}
	}
}

// TestLivingCommandIsNotStartedAgain checks that a command that goes on after its headroom was
// killed is seen: status names it, and neither resume, nor a run of the same name, nor a relaunch of
// a run that keeps its checkpoints in the same folder starts another one beside it.
func TestLivingCommandIsNotStartedAgain(t *testing.T) {
	inEmptyFolder(t, "train.py", "")
	if err := os.WriteFile("train", []byte("#!/bin/sh\ntrap '' TERM\nmkdir -p out\necho $$\nwhile :; do sleep 0.05; done\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	p := begin(t, exec.Command("headroom", "run", "--name", "slow", "--trust", "--knob", "micro=--bs", "--knob", "accumulation=--accum", "--knob", "resume=--resume",
		"--knob", "checkpoints=out/*.json", "--", "./train", "--bs", "8", "--accum", "1"))
	if !p.lines.Scan() {
		t.Fatal(p.stderr.String())
	}
	pid, err := strconv.Atoi(p.lines.Text())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = syscall.Kill(pid, syscall.SIGKILL) }()
	dir := filepath.Join("runs", "slow")
	var known *runs.Process
	for late := time.Now().Add(time.Minute); known == nil && time.Now().Before(late); {
		s, _ := runs.ReadStatus(dir)
		known = s.Command
	}
	p.signal(syscall.SIGKILL)
	p.end()
	text := fmt.Sprintf("train (pid %d)", pid)
	for _, words := range [][]string{{"resume", "slow"}, {"run", "--name", "slow", "--", "true"}} {
		c := exec.Command("headroom", words...)
		said, err := c.CombinedOutput()
		if c.ProcessState.ExitCode() != 2 || !strings.Contains(string(said), "still running") || !strings.Contains(string(said), text) {
			t.Errorf("%q: %v\n%s", words, err, said)
		}
	}
	if said, _ := exec.Command("headroom", "status").CombinedOutput(); !strings.Contains(string(said), "its headroom was killed, but its command is still running: "+text) {
		t.Errorf("status: %s", said)
	}
	s, err := runs.ReadStatus(dir)
	if err != nil || s.State != runs.StateStale || s.Place == "" {
		t.Fatalf("%+v, %v", s, err)
	}
	if err := child.Rival("runs", filepath.Join("runs", "other"), s.Place); err == nil || !strings.Contains(err.Error(), text) {
		t.Errorf("another run with the same folder: %v", err)
	}
	if err := errors.Join(child.Rival("runs", filepath.Join("runs", "other"), s.Place+"2"), child.Rival("runs", dir, s.Place)); err != nil {
		t.Errorf("another folder, and the run itself: %v", err)
	}
	_ = syscall.Kill(pid, syscall.SIGKILL)
	after := func() error {
		return errors.Join(alone(dir, false), child.Rival("runs", filepath.Join("runs", "other"), s.Place))
	}
	for late := time.Now().Add(time.Minute); after() != nil && time.Now().Before(late); { // its sleep ends a little later
		time.Sleep(time.Millisecond)
	}
	if err := after(); err != nil {
		t.Errorf("after its end: %v", err)
	}
}

// TestUploadGoesOn checks that what a command has left running goes on after the run, and is named.
func TestUploadGoesOn(t *testing.T) {
	inEmptyFolder(t, "train.sh", `setsid sh -c 'echo $$ > pid; exec sleep 1000' >/dev/null 2>&1 &
while ! [ -s pid ]; do sleep 0.01; done; echo trained
`)
	c := exec.Command("headroom", "run", "--name", "left", "--", "sh", "train.sh")
	c.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0")
	said, err := c.CombinedOutput()
	text, failed := os.ReadFile("pid")
	if err != nil || failed != nil {
		t.Fatalf("%v, %v\n%s", err, failed, said)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = syscall.Kill(pid, syscall.SIGKILL) }()
	want := fmt.Sprintf("the command left a process running: sleep (pid %d)", pid)
	if !lives(pid) || string(said) != "trained\nheadroom: "+want+"\n" {
		t.Errorf("lives: %v, said %q", lives(pid), said)
	}
	journal, err := runs.ReadJournal(filepath.Join("runs", "left"))
	if err != nil || len(journal) < 2 || journal[len(journal)-2].Text != want || journal[len(journal)-1].Kind != runs.KindDone {
		t.Errorf("%v, %+v", err, journal)
	}
}

// TestCommandCannotTell checks that everything that a command inherits is the same with and
// without headroom in front of it.
func TestCommandCannotTell(t *testing.T) {
	t.Chdir(t.TempDir())
	for _, what := range []string{
		"ulimit -a -S; ulimit -a -H", "umask; pwd; id; nice", "cat /proc/self/oom_score_adj /proc/self/cgroup /proc/self/timerslack_ns",
		"grep -E 'Sig(Blk|Ign)|Seccomp|NoNewPrivs|allowed|Cap' /proc/self/status", "ls /proc/self/fd",
		`env | sed -e 's,^PYTHONPATH=[^:]*/headroom-worker-[^:]*/package:*,PYTHONPATH=,' -e '/^PYTHONPATH=$/d' | grep -v -e ^_= -e ^HEADROOM_ | sort`,
		"for d in 0 1 2; do [ -t $d ] && echo tty; done; cat", "printf '<%s>' \"$@\"",
	} {
		var said [2]string
		for i, front := range [][]string{nil, {"headroom", "run", "--"}} {
			words := append([]string{"-c", `ulimit -S -c 1000; ulimit -S -n 300; umask 027; trap "" QUIT PIPE USR2; exec "$@"`, "sh"}, front...)
			c := exec.Command("sh", append(words, "sh", "-c", what, "sh", "--", "two words", "")...)
			c.Stdin, c.Env = strings.NewReader("typed\n"), append(os.Environ(), "GORACE=atexit_sleep_ms=0")
			out, err := c.CombinedOutput()
			if err != nil {
				t.Errorf("%s: %v", what, err)
			}
			said[i] = string(out)
		}
		if said[0] != said[1] {
			t.Errorf("%s\nbare:\n%s\nwrapped:\n%s", what, said[0], said[1])
		}
	}
}

// TestEveryCommandHasItsOwnFolder checks that a command that is started many times at once gets a
// new folder each time, and that a name that is taken is refused.
func TestEveryCommandHasItsOwnFolder(t *testing.T) {
	t.Chdir(t.TempDir())
	w := &wrapped{}
	w.Wrapped = &wrap.Wrapped{Line: command.Line{Args: []string{"python", "train.py"}, Dir: "/somewhere"}}
	w.request.Command = configs.Command{Args: w.Line.Args, Dir: w.Line.Dir, Name: "mine", Hang: configs.DefaultHang}
	const starts = 16
	names := make(chan string, starts)
	var all sync.WaitGroup
	for range starts {
		all.Go(func() {
			folder, err := w.folder("")
			if err != nil {
				t.Error(err)
				return
			}
			names <- filepath.Base(folder.Dir())
			if err := folder.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	close(names)
	made := map[string]bool{}
	for name := range names {
		made[name] = true
	}
	if !made["train-run"] || !made["train-run-16"] || len(made) != starts {
		t.Errorf("%d starts made %v", starts, made)
	}
	var usage *ui.UsageError
	if _, err := w.folder("train-run"); !errors.As(err, &usage) || !strings.Contains(err.Error(), "there is already a run runs/train-run") {
		t.Errorf("a name that is taken: %v", err)
	}
	for _, name := range []string{"../out", "a/b", ".", "-x", "x y", strings.Repeat("x", 101)} {
		if _, err := w.folder(name); !errors.As(err, &usage) || !strings.Contains(err.Error(), "allowed: 1 to 100 letters") {
			t.Errorf("the name %.20q: %v", name, err)
		}
	}
	kept, err := os.ReadFile("runs/train-run/run.yaml")
	if want := "command:\n    - python\n    - train.py\ndir: /somewhere\n"; err != nil || string(kept) != want {
		t.Errorf("run.yaml is %q, %v", kept, err)
	}
}

func TestNameFor(t *testing.T) {
	for want, words := range map[string][]string{
		"train-run":         {"torchrun", "--nproc-per-node", "2", "src/train.py", "--out", "x.py"},
		"python3-run":       {"/usr/bin/python3", "-m", "pkg.train"},
		"my-model-v1.2-run": {"python", "my model v1.2.py"},
		"hidden.sh-run":     {"./.hidden.sh.py"},
		"command-run":       {"./训练"},
	} {
		if got := nameFor(words); got != want || !configs.IsName(got) {
			t.Errorf("%q: %q, want %q", words, got, want)
		}
	}
}

// TestTwoRunsOfOneOutput checks that of two commands that save to the same place, the second
// one runs but is only watched.
func TestTwoRunsOfOneOutput(t *testing.T) {
	inEmptyFolder(t, "wait.py", "import sys\nif '--wait' in sys.argv:\n    print('running', flush=True)\n    __import__('signal').pause()\n")
	wrap := func(name string, more ...string) *exec.Cmd {
		return exec.Command("headroom", append([]string{"run", "--name", name, "--trust", "--knob", "micro=--bs", "--knob", "accumulation=--acc", "--knob", "resume=--from",
			"--knob", "checkpoints=out/*.json", "--", "python3", "wait.py", "--bs", "8", "--acc", "1"}, more...)...)
	}
	first := begin(t, wrap("one", "--wait"))
	if !first.lines.Scan() {
		t.Fatal(first.stderr.String())
	}
	said, err := wrap("two").CombinedOutput()
	if err != nil || !strings.Contains(string(said), fmt.Sprintf("another headroom run (one, process %d) keeps its checkpoints in out, too", first.cmd.Process.Pid)) {
		t.Errorf("%v: %s", err, said)
	}
	if said, err := wrap("one").CombinedOutput(); err == nil || !strings.Contains(string(said), fmt.Sprintf("there is already a run runs/one, and process %d is working in it", first.cmd.Process.Pid)) {
		t.Errorf("%v: %s", err, said)
	}
	first.signal(syscall.SIGTERM)
	if got := first.end(); got != 143 {
		t.Errorf("status %d\n%s", got, first.stderr.String())
	}
	if status, err := runs.ReadStatus(filepath.Join("runs", "one")); err != nil || status.Reason != "interrupted" {
		t.Errorf("it says %q, %v: the same command would not continue", status.Reason, err)
	}
	if said, err := wrap("one").CombinedOutput(); err == nil || !strings.Contains(string(said), "there is already a run runs/one\n") {
		t.Errorf("%v: %s", err, said)
	}
	if said, err := wrap("three").CombinedOutput(); err != nil || len(said) > 0 {
		t.Errorf("the place is free again: %v: %s", err, said)
	}
}

// leaky is a script that seems to leak memory. It reports to the worker's socket, as a training run
// in PyTorch would, and each step that it reports holds more memory than the last. It saves once.
// Started from a checkpoint, it ends at once.
const leaky = `import json, os, socket, sys, time
if "--from" in sys.argv:
    print("on from", os.path.basename(sys.argv[sys.argv.index("--from") + 1]))
    sys.exit()
wire = socket.socket(socket.AF_UNIX)
wire.connect(os.environ["HEADROOM_SOCKET"])
def say(**message):
    wire.sendall(json.dumps(message).encode() + b"\n")
say(type="hello", v=2, rank=0, world=1, python="3", torch="2", mode="armed")
began, gib, step, saved = time.monotonic(), 1 << 30, 0, False
while time.monotonic() - began < 60:
    past = time.monotonic() - began
    held = int((20 + 60 * past / 8) * gib)  # all of it after eight seconds
    step += 1
    say(type="step", step=step, allocated=held, reserved=held, peak=held, free=max(0, 80 * gib - held), capacity=80 * gib)
    if not saved and past > 4:
        open("step-7.json", "w").write("{}")
        saved = True
    time.sleep(0.02)
`

// TestLeakingCommandIsStartedAgain checks that with --restart-leaking a command that would
// run out of memory before its next checkpoint continues from the one that it has, in a new
// process, and that the run reports this.
func TestLeakingCommandIsStartedAgain(t *testing.T) {
	inEmptyFolder(t, "train.py", leaky)
	out, err := exec.Command("headroom", "run", "--name", "leaky", "--trust", "--restart-leaking", "--hang", "1s", "--knob", "micro=--bs", "--knob", "accumulation=--acc",
		"--knob", "resume=--from", "--knob", "checkpoints=step-*.json", "--", "python3", "train.py", "--bs", "8", "--acc", "1").CombinedOutput()
	for _, want := range []string{"on from step-7.json", "continue in a new process from step 7: memory would run out before the next checkpoint, due about ", "memory held between steps grows by "} {
		if err != nil || !strings.Contains(strings.Join(strings.Fields(string(out)), " "), want) {
			t.Errorf("%v: no %q in\n%s", err, want, out)
		}
	}
	status, err := runs.ReadStatus(filepath.Join("runs", "leaky"))
	if err != nil || status.State != runs.StateDone || status.Attempt != 2 || status.Failures != 0 {
		t.Errorf("%+v, %v", status, err)
	}
}

// TestResumeFromAnothersCheckpoint checks that a run which has ended is not continued from a
// checkpoint that another training run wrote to the same place afterwards.
func TestResumeFromAnothersCheckpoint(t *testing.T) {
	inEmptyFolder(t, "train.py", "import sys\nprint(sys.argv[1:])\nsys.exit('--from' not in sys.argv)\n")
	run := []string{"run", "--name", "mine", "--trust", "--knob", "micro=--bs", "--knob", "accumulation=--acc", "--knob", "resume=--from",
		"--knob", "checkpoints=step-*.json", "--", "python3", "train.py", "--bs", "8", "--acc", "1"}
	if err := exec.Command("headroom", run...).Run(); err == nil {
		t.Fatal("it was to fail")
	}
	// Everything was written an hour ago, except for one checkpoint.
	anHourAgo(t, filepath.Join("runs", "mine", "journal.jsonl"))
	for name, ago := range map[string]time.Duration{"step-4.json": time.Hour, "step-9.json": time.Minute} {
		at := time.Now().Add(-ago)
		if err := errors.Join(os.WriteFile(name, []byte("{}"), 0o600), os.Chtimes(name, at, at)); err != nil {
			t.Fatal(err)
		}
	}
	said, err := exec.Command("headroom", "resume", "mine").CombinedOutput()
	if err == nil || !strings.Contains(string(said), "step-9.json was written at ") || !strings.Contains(string(said), "belongs to another training") || strings.Contains(string(said), "--from") {
		t.Errorf("%v\n%s", err, said)
	}
	if err := os.Remove("step-9.json"); err != nil {
		t.Fatal(err)
	}
	if said, err := exec.Command("headroom", "resume", "mine").CombinedOutput(); err != nil || !strings.Contains(string(said), "step-4.json") {
		t.Errorf("%v\n%s", err, said)
	}
}

// anHourAgo moves all timestamps in the file at path, a run's journal or status, back by
// an hour.
func anHourAgo(t *testing.T, path string) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	text = regexp.MustCompile(`"(time|updated)": ?"[^"]*"`).ReplaceAllFunc(text, func(field []byte) []byte {
		key, value, _ := strings.Cut(string(field), ":")
		at, err := time.Parse(`"`+time.RFC3339Nano+`"`, strings.TrimSpace(value))
		if err != nil {
			t.Error(err)
		}
		return []byte(key + ":" + at.Add(-time.Hour).Format(`"`+time.RFC3339Nano+`"`))
	})
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestResumeOfAKilledRun checks that the status says when a command was last alive, even if the
// command writes nothing. It also checks that a killed run is not continued from a checkpoint
// written long after that, but is continued from one that its command wrote soon after the kill.
func TestResumeOfAKilledRun(t *testing.T) {
	inEmptyFolder(t, "train.py", "import sys, time\nprint(sys.argv[1:])\nif '--from' not in sys.argv: time.sleep(1000)\n")
	c := exec.Command("headroom", "run", "--name", "mine", "--trust", "--knob", "micro=--bs", "--knob", "accumulation=--acc", "--knob", "resume=--from",
		"--knob", "checkpoints=step-*.json", "--", "python3", "train.py", "--bs", "8", "--acc", "1")
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join("runs", "mine")
	look := time.NewTicker(10 * time.Millisecond)
	defer look.Stop()
	for late := time.After(patience); ; {
		if s, err := runs.ReadStatus(dir); err == nil && s.Every > 0 {
			break
		}
		select {
		case <-look.C:
		case <-late:
			t.Fatal("the status never says that it is alive")
		}
	}
	if err := c.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = c.Wait()
	for _, name := range []string{"journal.jsonl", "status.json"} {
		anHourAgo(t, filepath.Join(dir, name))
	}
	for name, ago := range map[string]time.Duration{"step-4.json": time.Hour - time.Minute, "step-9.json": time.Minute} {
		at := time.Now().Add(-ago)
		if err := errors.Join(os.WriteFile(name, []byte("{}"), 0o600), os.Chtimes(name, at, at)); err != nil {
			t.Fatal(err)
		}
	}
	said, err := exec.Command("headroom", "resume", "mine").CombinedOutput()
	if err == nil || !regexp.MustCompile(`step-9.json was written at .*, after runs/mine was last alive at .*: it belongs to another training`).Match(said) {
		t.Errorf("%v\n%s", err, said)
	}
	if err := os.Remove("step-9.json"); err != nil {
		t.Fatal(err)
	}
	if said, err := exec.Command("headroom", "resume", "mine").CombinedOutput(); err != nil || !strings.Contains(string(said), "step-4.json") {
		t.Errorf("%v\n%s", err, said)
	}
}

// TestWorthAReport checks that the report of a command that had no failures is drawn if the command
// ran for a long time, or if an existing report would be out of date.
func TestWorthAReport(t *testing.T) {
	dir, begun := t.TempDir(), time.Date(2026, 1, 1, 2, 0, 0, 0, time.UTC)
	w := &wrapped{Command: job.Command{Wrapped: &wrap.Wrapped{Begun: begun}}}
	for after, want := range map[time.Duration]bool{time.Second: false, longRun - 1: false, longRun: true, time.Hour: true} {
		if got := w.worthAReport(dir, begun.Add(after)); got != want {
			t.Errorf("after %v: %v, want %v", after, got, want)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "report.html"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if !w.worthAReport(dir, begun) {
		t.Error("the report that is there would be out of date")
	}
}

// TestHowARunGoesOn checks how users are told to continue a run: with headroom resume if it wraps a
// command about which enough is known, and with the command that started it if it runs a
// configuration.
func TestHowARunGoesOn(t *testing.T) {
	for kept, want := range map[string]string{
		"command: [python, train.py]\n": "and headroom does not know how to continue its command: start it again",
		"command: [python, train.py, --bs, '8', --acc, '1']\ntrust: true\nknobs:\n    micro: --bs\n    accumulation: --acc\n": "headroom resume night starts its command again",
		"name: night\n": "rerunning the command that started it continues",
	} {
		t.Chdir(t.TempDir())
		dir := filepath.Join("runs", "night")
		if err := errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, "run.yaml"), []byte(kept), 0o600)); err != nil {
			t.Fatal(err)
		}
		for state, named := range map[runs.State]bool{runs.StateStale: false, runs.StateInterrupted: true} {
			hint := statusHint([]standing{{Name: "night", Folder: dir, Status: runs.Status{State: state}}}, named)
			if !strings.Contains(hint, want) {
				t.Errorf("%s: %s: %s", strings.TrimSpace(kept), state, hint)
			}
		}
		if hint := statusHint([]standing{{Name: "night", Folder: dir, Status: runs.Status{State: runs.StateInterrupted}}}, false); hint != "" {
			t.Errorf("of all runs: %s", hint)
		}
		elsewhere := standing{Name: "night", Folder: "other/night", Status: runs.Status{State: runs.StateDone}}
		if hint := statusHint([]standing{elsewhere}, true); !strings.HasPrefix(hint, "headroom report other/night --open") {
			t.Errorf("elsewhere: %s", hint)
		}
	}
}
