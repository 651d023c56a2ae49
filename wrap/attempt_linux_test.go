package wrap

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"headroom/harness"
	"headroom/memory"
	"headroom/nvml"
	"headroom/recovery"
	"headroom/runs"
	"headroom/wrap/checkpoints"
	"headroom/wrap/command"
	"headroom/wrap/exits"
	"headroom/wrap/rewrite"
	"headroom/wrap/wraptest"
)

// TestNothingIsStartedAfterARequest checks that a request to stop is not lost if it comes
// before the command is started.
func TestNothingIsStartedAfterARequest(t *testing.T) {
	ctx, stop := context.WithCancel(context.Background())
	stop()
	made := filepath.Join(t.TempDir(), "made")
	w := begun(t, &Wrapped{Line: command.Line{Args: []string{"touch", made}, Env: os.Environ()}}, "run", func(text string) { t.Error(text) })
	for _, stopped := range []bool{true, false} {
		asked := ctx
		if !stopped {
			asked = context.Background()
		}
		_, _, err := w.attempt(asked, beginning{})
		if _, missing := os.Stat(made); errors.Is(err, harness.ErrInterrupted) != stopped || (missing != nil) != stopped {
			t.Errorf("asked to end: %v; %v, made: %v", stopped, err, missing == nil)
		}
	}
}

// TestRecordedAtTheFirstStart checks that what is known about a command is recorded once, with its
// first start.
func TestRecordedAtTheFirstStart(t *testing.T) {
	w := &Wrapped{Line: command.Line{Args: []string{"true"}, Env: os.Environ()}, Why: errors.New("--watch-only was given")}
	begun(t, w, "run", func(text string) { t.Error(text) })
	for range 2 {
		if _, _, err := w.attempt(context.Background(), beginning{}); err != nil {
			t.Fatal(err)
		}
	}
	journal, err := runs.ReadJournal(w.Folder.Dir())
	var known []string
	for _, e := range journal {
		if e.Kind == runs.KindCommand {
			known = append(known, e.Text)
		}
	}
	if err != nil || len(known) != 1 || known[0] != "--watch-only was given" {
		t.Errorf("%q, %v", known, err)
	}
}

// TestOnlyARestartWaits checks that newest waits for a fresh checkpoint to settle only if
// the command may be started again from it.
func TestOnlyARestartWaits(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "step-7.json"), []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	c := command.Line{Args: []string{"train", "--bs", "4", "--acc", "1"}, Dir: dir}
	m, err := rewrite.Recognise(c, nil, rewrite.Given{Files: os.DirFS("/"), World: 1,
		Knobs: []string{"micro=--bs", "accumulation=--acc", "resume=--resume", "checkpoints=step-*.json"}})
	if err != nil {
		t.Fatal(err)
	}
	w := begun(t, &Wrapped{Line: c, Match: m}, "run", func(text string) { t.Error(text) })
	for _, decides := range []bool{false, true} {
		w.decides = decides
		if err := os.Chtimes(filepath.Join(dir, "step-7.json"), time.Time{}, time.Now()); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		s, err := w.newest()
		if took := time.Since(began); err != nil || s == nil || s.Step != 7 || (took >= checkpoints.Settled) != decides {
			t.Errorf("decides: %v: %+v, %v, after %v", decides, s, err, took)
		}
	}
}

// TestHungIsEnded checks that a command which holds GPU memory but does nothing is ended
// if Restart is set, and otherwise only reported.
func TestHungIsEnded(t *testing.T) {
	for _, restart := range []bool{true, false} {
		dir := t.TempDir()
		told := make(chan string, 8)
		w := &Wrapped{Hang: 300 * time.Millisecond, Restart: restart,
			Line: command.Line{Args: []string{"sh", "-c", `echo $$ >pid; trap 'exit 3' TERM; while ! [ -e told ]; do sleep 0.01; done`}, Env: os.Environ(), Dir: dir}}
		w.gpus = func() ([]nvml.GPU, error) {
			text, err := os.ReadFile(filepath.Join(dir, "pid"))
			pid, _ := strconv.Atoi(strings.TrimSpace(string(text)))
			if _, gone := os.Stat(filepath.Join("/proc", strconv.Itoa(pid))); err != nil || gone != nil {
				return []nvml.GPU{{Total: 8 * memory.GiB}}, nil
			}
			return []nvml.GPU{{Total: 8 * memory.GiB, Used: memory.GiB, Holders: []nvml.Holder{{PID: pid, Bytes: memory.GiB}}}}, nil
		}
		begun(t, w, "run", func(text string) {
			told <- text
			if err := os.WriteFile(filepath.Join(dir, "told"), nil, 0o600); err != nil {
				t.Error(err)
			}
		})
		o, exit, err := w.attempt(context.Background(), beginning{})
		if err != nil || (o.Kind == exits.Hung) != restart || (exit.Code == 3) != restart || exit.Stopped {
			t.Errorf("restart %v: %+v, %+v, %v", restart, o, exit, err)
		}
		if n := len(told); restart == (n > 0) {
			t.Errorf("restart %v: told %d times", restart, n)
		}
	}
}

// TestLeakIsLeft checks that a command whose memory would run out before its next
// checkpoint is ended after a checkpoint if Leave is set, and otherwise only reported.
func TestLeakIsLeft(t *testing.T) {
	for _, leave := range []bool{true, false} {
		dir := t.TempDir()
		train := filepath.Join(dir, "train")
		if err := os.WriteFile(train, []byte("#!/bin/sh\ntrap 'exit 3' TERM; sleep 0.05; echo {} >step-7.json; while ! [ -e told ]; do sleep 0.01; done\n"), 0o700); err != nil {
			t.Fatal(err)
		}
		c := command.Line{Args: []string{train, "--bs", "4", "--acc", "1"}, Env: os.Environ(), Dir: dir}
		m, err := rewrite.Recognise(c, nil, rewrite.Given{Files: os.DirFS("/"), World: 1,
			Knobs: []string{"micro=--bs", "accumulation=--acc", "resume=--resume", "checkpoints=step-*.json"}})
		if err != nil {
			t.Fatal(err)
		}
		asked, err := rewrite.Asks(m)
		if err != nil {
			t.Fatal(err)
		}
		told := make(chan string, 8)
		w := &Wrapped{Line: c, Match: m, Asked: asked.Plan, Hang: 40 * time.Millisecond, Leave: leave, Inside: &seenInside{out: time.Now().Add(-time.Hour)}}
		begun(t, w, "run", func(text string) {
			told <- text
			if err := os.WriteFile(filepath.Join(dir, "told"), nil, 0o600); err != nil {
				t.Error(err)
			}
		})
		o, exit, err := w.attempt(context.Background(), beginning{Settings: harness.Settings{Plan: asked.Plan}})
		if err != nil || (o.Kind == exits.Leaking) != leave || (exit.Code == 3) != leave || exit.Stopped {
			t.Errorf("leave %v: %+v, %+v, %v", leave, o, exit, err)
		}
		if leave == (len(told) > 0) {
			t.Errorf("leave %v: told %d times", leave, len(told))
		}
	}
}

// TestOnlyWhatIsInTheWayIsEnded checks what an attempt leaves behind before the next one starts: what
// holds a GPU, writes to the run's files or is still training is ended, with what it has started;
// everything else is left alone, and named in the end.
func TestOnlyWhatIsInTheWayIsEnded(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "out"), 0o700); err != nil {
		t.Fatal(err)
	}
	script := `
mkdir -p out; : >out/read.json
quiet='exec >/dev/null 2>&1; exec sleep 1000'
setsid sh -c 'echo $$ >gpu; '"$quiet" &
setsid sh -c 'echo $$ >writer; exec 5>>out/step-1.tmp; '"$quiet" &
setsid sh -c 'trap "" TERM; echo $$ >parent; exec 5>>out/step-1.tmp; sh -c "echo \$\$ >child; exec 5>&-; sleep 1000" & wait' >/dev/null 2>&1 &
setsid sh -c 'echo $$ >trains; '"$quiet" &
setsid sh -c 'echo $$ >reader; exec 5<out/read.json; '"$quiet" &
setsid sh -c 'echo $$ >logs; exec >out/upload.log 2>&1; exec sleep 1000' &
sh -c 'echo $$ >group; '"$quiet" &
for name in gpu writer parent child trains reader logs group; do while ! [ -s $name ]; do sleep 0.01; done; done; exit 1`
	c := command.Line{Args: []string{"sh", "-c", script}, Env: os.Environ(), Dir: dir}
	m, err := rewrite.Recognise(command.Line{Args: []string{"train", "--bs", "4", "--acc", "1"}, Dir: dir}, nil, rewrite.Given{Files: os.DirFS("/"), World: 1, Knobs: []string{"micro=--bs", "accumulation=--acc", "resume=--resume", "checkpoints=out/step-*.json"}})
	if err != nil {
		t.Fatal(err)
	}
	pid := func(name string) int {
		text, _ := os.ReadFile(filepath.Join(dir, name))
		n, _ := strconv.Atoi(strings.TrimSpace(string(text)))
		return n
	}
	w := begun(t, &Wrapped{Line: c, Match: m, Asked: recovery.Plan{Effective: 4, World: 1, Micro: 4}}, "run", func(text string) { t.Error(text) })
	w.gpus = func() ([]nvml.GPU, error) {
		g := nvml.GPU{Total: 8 * memory.GiB}
		if p := pid("gpu"); p > 0 && !wraptest.Gone(strconv.Itoa(p)) {
			g.Used, g.Holders = memory.GiB, []nvml.Holder{{PID: p, Bytes: memory.GiB}}
		}
		return []nvml.GPU{g}, nil
	}
	w.Inside = &seenInside{training: func() []int { return []int{pid("trains")} }}
	if _, _, err := w.attempt(context.Background(), beginning{Settings: harness.Settings{Plan: w.Asked}}); err != nil {
		t.Fatal(err)
	}
	inTheWay, others := []string{"gpu", "writer", "parent", "child", "trains"}, []string{"reader", "logs", "group"}
	for _, name := range append(inTheWay, others...) {
		wraptest.Killed(t, strconv.Itoa(pid(name)))
		if wraptest.Gone(strconv.Itoa(pid(name))) {
			t.Errorf("%s was ended before it was known whether another attempt follows", name)
		}
	}
	text := w.clear(context.Background())
	for _, name := range inTheWay {
		if !wraptest.Gone(strconv.Itoa(pid(name))) || !strings.Contains(text, fmt.Sprintf("(pid %d)", pid(name))) {
			t.Errorf("%s: gone %v, %q", name, wraptest.Gone(strconv.Itoa(pid(name))), text)
		}
	}
	text = w.leftText()
	for _, name := range others {
		if wraptest.Gone(strconv.Itoa(pid(name))) || !strings.Contains(text, fmt.Sprintf("(pid %d)", pid(name))) {
			t.Errorf("%s: gone %v, %q", name, wraptest.Gone(strconv.Itoa(pid(name))), text)
		}
	}
	if !strings.HasPrefix(text, "the command left 3 processes running: ") {
		t.Errorf("%q", text)
	}
	w.Match, w.Line = nil, command.Line{Args: []string{"true"}, Env: os.Environ(), Dir: dir}
	if _, _, err := w.attempt(context.Background(), beginning{Settings: harness.Settings{Plan: w.Asked}}); err != nil || w.leftText() != text {
		t.Errorf("after another attempt: %v, %q, want %q", err, w.leftText(), text)
	}
	_ = syscall.Kill(pid("group"), syscall.SIGKILL)
	wraptest.Eventually(t, "it is reaped", func() bool { _, err := os.Stat("/proc/" + strconv.Itoa(pid("group"))); return err != nil })
	if !strings.HasPrefix(w.leftText(), "the command left 2 processes running: ") {
		t.Errorf("%q", w.leftText())
	}
}
