package main

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"headroom/device"
	"headroom/runs"
)

// soon is how long a process that should end within a second may take on a busy machine.
// Without the signal that the test sends, the process would never end.
const soon = 20 * time.Second

// stuck runs headroom with a device that announces that it is stuck and never answers again.
func stuck() {
	wrapDevice = func(d device.Device) device.Device { return &stuckDevice{Device: d} }
	main()
}

type stuckDevice struct {
	device.Device
	answers int
}

func (d *stuckDevice) Sync() error {
	if d.answers++; d.answers == 10 {
		_, _ = os.Stderr.WriteString("stuck\n")
		select {}
	}
	return d.Device.Sync()
}

// fifo puts a named pipe at path, in place of a file that may be there. The returned
// function waits until a process has opened the pipe for reading.
func fifo(t *testing.T, path string) (reader func()) {
	t.Helper()
	_ = os.Remove(path) // if it exists
	if err := syscall.Mkfifo(path, 0o644); err != nil {
		t.Fatal(err)
	}
	return func() {
		t.Helper()
		opened := make(chan error, 1)
		go func() { // opening waits for the other end
			f, err := os.OpenFile(path, os.O_WRONLY, 0)
			if err == nil {
				t.Cleanup(func() { _ = f.Close() })
			}
			opened <- err
		}()
		select {
		case err := <-opened:
			if err != nil {
				t.Fatal(err)
			}
		case <-time.After(patience):
			t.Fatalf("nobody reads %s", path)
		}
	}
}

// TestSignalWhileOpening checks that a signal ends a command at once while it is opening a
// run, even in a read that never ends.
func TestSignalWhileOpening(t *testing.T) {
	for _, c := range []struct {
		file string
		args []string
	}{
		{"runs/endless/journal.jsonl", []string{"run", "endless.yaml"}},
		{"runs/endless/status.json", []string{"run", "endless.yaml", "--again"}},
		{"features/train-images-idx3-ubyte", []string{"find", "idx.yaml"}},
	} {
		for _, s := range []os.Signal{os.Interrupt, syscall.SIGTERM} {
			inEmptyFolder(t, "endless.yaml", endless)
			idx := strings.NewReplacer("kind: blobs, samples: 64, features: 4, classes: 2", "kind: idx, path: features").Replace(endless)
			if err := os.WriteFile("idx.yaml", []byte(idx), 0o644); err != nil {
				t.Fatal(err)
			}
			first := start(t, "run", "endless.yaml", "--set", "train.steps=1")
			first.end()
			if err := os.MkdirAll("features", 0o755); err != nil {
				t.Fatal(err)
			}
			reader := fifo(t, c.file)
			p := begin(t, exec.Command("headroom", c.args...))
			reader()
			p.signal(s)
			began := time.Now()
			if got := p.end(); got != 75 || time.Since(began) > soon {
				t.Errorf("%s, %v: exit status %d after %v, want 75 at once\n%s", c.file, s, got, time.Since(began), p.stderr.String())
			}
		}
	}
}

// TestSecondSignalWaitsForNobody checks that a second signal ends a run even in the middle
// of a step that never ends.
func TestSecondSignalWaitsForNobody(t *testing.T) {
	inEmptyFolder(t, "endless.yaml", endless)
	p := begin(t, exec.Command("headroom-stuck", "run", "endless.yaml", "--json"))
	p.await("stuck")
	p.signal(os.Interrupt)
	p.await("stopping after this step")
	p.signal(os.Interrupt)
	began := time.Now()
	last := p.until("the result", func(l printed) bool { return l.Kind == "result" })
	if got := p.end(); got != 75 || last.Status != 75 || time.Since(began) > soon {
		t.Fatalf("exit status %d, told %d, after %v; want 75 at once\n%s", got, last.Status, time.Since(began), p.stderr.String())
	}
	if !strings.Contains(p.stderr.String(), ", not saved; the same command continues from step 0") {
		t.Errorf("%s", p.stderr.String())
	}
	if s, err := runs.ReadStatus("runs/endless"); err != nil || s.State != runs.StateInterrupted {
		t.Errorf("status %v, %v, want interrupted", s.State, err)
	}
	again := start(t, "run", "endless.yaml", "--set", "train.steps=20")
	if got := again.end(); got != 0 {
		t.Errorf("the same command: exit status %d\n%s", got, again.stderr.String())
	}
}

// TestFindIsLeft checks that a second signal ends find even in the middle of a step that
// never ends.
func TestFindIsLeft(t *testing.T) {
	inEmptyFolder(t, "endless.yaml", endless)
	p := begin(t, exec.Command("headroom-stuck", "find", "endless.yaml"))
	p.await("stuck")
	p.signal(os.Interrupt)
	p.await("stopping; nothing is kept")
	p.signal(os.Interrupt)
	began := time.Now()
	if got := p.end(); got != 75 || time.Since(began) > soon {
		t.Errorf("exit status %d after %v, want 75 at once\n%s", got, time.Since(began), p.stderr.String())
	}
}
