package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"headroom/runs"
)

// endless is the configuration of a run that takes longer than any test waits.
const endless = `model: {kind: mlp, layers: 1, width: 8}
data: {kind: blobs, samples: 64, features: 4, classes: 2}
batch: {effective: 8, micro: 4}
train: {steps: 100000000, checkpoint_every: 1000000, keep: 100}
device: {kind: host, capacity: 1MiB}
`

// process is a headroom process that a test has started, and what it prints.
type process struct {
	t      *testing.T
	cmd    *exec.Cmd
	out    io.ReadCloser
	lines  *bufio.Scanner
	stderr watched
}

// printed holds the parts of a line of stdout that the tests look at.
type printed struct {
	Kind    string
	Step    int
	Status  int
	Resumed int
	Text    string
}

// patience is how long a process of a test may take: far longer than any needs,
// so that a process that hangs fails its own test and not the whole package.
const patience = 3 * time.Minute

// start starts headroom with --json in the current directory. A test that ends
// early ends headroom too.
func start(t *testing.T, args ...string) *process {
	t.Helper()
	return begin(t, exec.Command("headroom", append(args, "--json")...))
}

func begin(t *testing.T, command *exec.Cmd) *process {
	t.Helper()
	p := &process{t: t, cmd: command}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.stderr.more.L = &p.stderr.mu
	p.cmd.Stderr = &p.stderr
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p.out, p.lines = out, bufio.NewScanner(out)
	late := time.AfterFunc(patience, func() { _ = p.cmd.Process.Kill() }) // closes its output, so that reading from it ends
	t.Cleanup(func() { late.Stop(); _ = p.cmd.Process.Kill() })
	return p
}

// next returns the next line, or false at the end or at a line that was cut off.
func (p *process) next() (printed, bool) {
	var l printed
	if !p.lines.Scan() || json.Unmarshal(p.lines.Bytes(), &l) != nil {
		return l, false
	}
	return l, true
}

// until reads up to the first line for which wanted returns true, and returns that line.
// If there is none, the test fails; what describes the line in the message.
func (p *process) until(what string, wanted func(printed) bool) printed {
	p.t.Helper()
	for {
		l, more := p.next()
		if !more {
			p.t.Fatalf("it ended before %s:\n%s", what, p.stderr.String())
		}
		if wanted(l) {
			return l
		}
	}
}

func (p *process) signal(s os.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

// end reads the remaining output and returns the exit status, or -1 if a signal killed the
// process.
func (p *process) end() int {
	p.t.Helper()
	for {
		if _, more := p.next(); !more {
			break
		}
	}
	err := p.cmd.Wait()
	if failed := (*exec.ExitError)(nil); err != nil && !errors.As(err, &failed) {
		p.t.Fatal(err)
	}
	return p.cmd.ProcessState.ExitCode()
}

func inEmptyFolder(t *testing.T, name, text string) {
	t.Helper()
	t.Chdir(t.TempDir())
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func stepAfter(n int) func(printed) bool {
	return func(l printed) bool { return l.Kind == "step" && l.Step > n }
}

func TestFirstSignalSavesAndTheSameCommandGoesOn(t *testing.T) {
	inEmptyFolder(t, "endless.yaml", endless)
	at := 0
	for _, s := range []os.Signal{os.Interrupt, syscall.SIGTERM, syscall.SIGHUP} {
		p := start(t, "run", "endless.yaml")
		if l := p.until("a step", stepAfter(0)); l.Step != at+1 {
			t.Fatalf("%v: went on with step %d, want %d", s, l.Step, at+1)
		}
		p.signal(s)
		saved := p.until("the checkpoint", func(l printed) bool { return l.Kind == string(runs.KindCheckpoint) })
		last := p.until("the result", func(l printed) bool { return l.Kind == "result" })
		if got := p.end(); got != 75 || last.Status != 75 {
			t.Fatalf("%v: exit status %d, told %d, want 75", s, got, last.Status)
		}
		for _, want := range []string{"stopping after this step", "the same command continues from there"} {
			if !strings.Contains(p.stderr.String(), want) {
				t.Errorf("%v: no %q in\n%s", s, want, p.stderr.String())
			}
		}
		at = saved.Step
	}
	if s, err := runs.ReadStatus("runs/endless"); err != nil || s.State != runs.StateInterrupted {
		t.Errorf("status %v, %v", s.State, err)
	}
}

// TestIgnoredHangupStaysIgnored checks that a run which was started with SIGHUP ignored,
// as under nohup, continues when its terminal goes away.
func TestIgnoredHangupStaysIgnored(t *testing.T) {
	inEmptyFolder(t, "endless.yaml", endless)
	p := begin(t, exec.Command("sh", "-c", `trap "" HUP; exec headroom run endless.yaml --json`))
	l := p.until("a step", stepAfter(0))
	p.signal(syscall.SIGHUP)
	p.until("many more steps", stepAfter(l.Step+100))
	p.signal(syscall.SIGTERM)
	if got := p.end(); got != 75 || strings.Contains(p.stderr.String(), "stopping now") {
		t.Errorf("exit status %d, want 75 after one signal\n%s", got, p.stderr.String())
	}
}

// TestKilledRunIsStale checks how headroom status shows a run whose process was killed.
func TestKilledRunIsStale(t *testing.T) {
	inEmptyFolder(t, "endless.yaml", endless)
	p := start(t, "run", "endless.yaml")
	p.until("a step", stepAfter(0))
	p.signal(syscall.SIGKILL)
	p.end()
	var out, errs strings.Builder
	look := exec.Command("headroom", "status", "endless")
	look.Stdout, look.Stderr = &out, &errs
	if err := look.Run(); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out.String(), " stale ") || !strings.Contains(errs.String(), "continues from the newest checkpoint") {
		t.Errorf("%s%s", out.String(), errs.String())
	}
}

// TestSecondSignalStopsAtOnce sends both signals within one very long step. The run must
// stop without finishing the step or saving a checkpoint.
func TestSecondSignalStopsAtOnce(t *testing.T) {
	inEmptyFolder(t, "endless.yaml", endless)
	for range 10 {
		p := start(t, "run", "endless.yaml", "--fresh", "--set", "data.samples=200000", "--set", "batch.effective=200000", "--set", "batch.micro=1")
		p.until("the plan", func(l printed) bool { return l.Kind == string(runs.KindPlan) })
		p.signal(os.Interrupt)
		p.await("stopping after this step")
		p.signal(os.Interrupt)
		if got := p.end(); got != 75 {
			t.Fatalf("exit status %d, want 75\n%s", got, p.stderr.String())
		}
		if !strings.Contains(p.stderr.String(), "stopping now") || !strings.Contains(p.stderr.String(), "not saved") {
			continue // the first signal came before the step, whose start is not reported, and ended the run
		}
		if want := "interrupted after step 0 of 100000000, not saved; the same command continues from step 0"; !strings.Contains(p.stderr.String(), want) {
			t.Errorf("no %q in\n%s", want, p.stderr.String())
		}
		if saved, err := filepath.Glob("runs/endless/checkpoints/*"); err != nil || saved != nil {
			t.Errorf("checkpoints %q, %v", saved, err)
		}
		return
	}
	t.Error("the first signal always ended the run")
}

func TestOneProcessARun(t *testing.T) {
	inEmptyFolder(t, "endless.yaml", endless)
	first := start(t, "run", "endless.yaml")
	first.until("a step", stepAfter(0))
	for _, flags := range [][]string{nil, {"--fresh"}} {
		second := start(t, append([]string{"run", "endless.yaml"}, flags...)...)
		if got := second.end(); got != 2 {
			t.Errorf("%q: exit status %d, want 2", flags, got)
		}
		if text := second.stderr.String(); !strings.Contains(text, "in use by process") {
			t.Errorf("%q: %s", flags, text)
		}
	}
	if s, err := runs.ReadStatus("runs/endless"); err != nil || s.State != runs.StateRunning {
		t.Errorf("status %v, %v", s.State, err)
	}
	first.signal(os.Interrupt)
	if got := first.end(); got != 75 {
		t.Errorf("exit status %d, want 75", got)
	}
}

// TestReaderGoesAway checks that a run continues to its end after the reader of its stdout
// has gone.
func TestReaderGoesAway(t *testing.T) {
	inEmptyFolder(t, "endless.yaml", endless)
	p := start(t, "run", "endless.yaml", "--set", "train.steps=2000")
	p.until("a step", stepAfter(0))
	if err := p.out.Close(); err != nil {
		t.Fatal(err)
	}
	if got := p.end(); got != 0 {
		t.Errorf("exit status %d, want 0", got)
	}
	if n := strings.Count(p.stderr.String(), "the run continues without this output"); n != 1 {
		t.Errorf("told %d times that nobody reads, want once:\n%s", n, p.stderr.String())
	}
}

// watched is a buffer that can be waited on.
type watched struct {
	mu   sync.Mutex
	more sync.Cond
	text strings.Builder
}

func (w *watched) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.text.Write(p)
	w.more.Broadcast()
	return len(p), nil
}

func (w *watched) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.String()
}

// await returns once the process has written text to stderr.
func (p *process) await(text string) {
	p.t.Helper()
	if !p.stderr.await(text, patience) {
		p.t.Fatalf("no %q within %v in\n%s", text, patience, p.stderr.String())
	}
}

// await reports whether text was written within the given time.
func (w *watched) await(text string, within time.Duration) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	late := false
	timer := time.AfterFunc(within, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		late = true
		w.more.Broadcast()
	})
	defer timer.Stop()
	for !late && !strings.Contains(w.text.String(), text) {
		w.more.Wait()
	}
	return strings.Contains(w.text.String(), text)
}

func TestAwaitGivesUp(t *testing.T) {
	var w watched
	w.more.L = &w.mu
	if _, err := w.Write([]byte("one line")); err != nil {
		t.Fatal(err)
	}
	if !w.await("one", patience) || w.await("another", time.Millisecond) {
		t.Error("the line that was written was not seen, or one that was not was")
	}
}
