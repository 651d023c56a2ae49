package main

import (
	"bufio"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// endlessTrial is the script of a trial that does not end by itself. Through a pipe it
// reports that it is running, which signal it gets, and which process it has started.
const endlessTrial = `import os, signal, subprocess, sys, time
said = os.open("said", os.O_WRONLY)
def heard(number, frame):
    os.write(said, b"heard %s\n" % signal.Signals(number).name.encode())
    os._exit(7)
signal.signal(signal.SIGINT, heard)
signal.signal(signal.SIGTERM, heard)
other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"], start_new_session=True)
os.write(said, b"%d\n" % other.pid)
while True:
    time.sleep(0.05)
`

// TestFindIsInterrupted checks that Ctrl-C reaches a trial and also ends the search, and
// that nothing of the trial is left.
func TestFindIsInterrupted(t *testing.T) {
	for _, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		t.Run(s.String(), func(t *testing.T) {
			inEmptyFolder(t, "train.py", endlessTrial)
			t.Setenv("TMPDIR", t.TempDir())
			if err := syscall.Mkfifo("said", 0o600); err != nil {
				t.Fatal(err)
			}
			said, err := os.OpenFile("said", os.O_RDWR, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = said.Close() }() // only read
			if err := said.SetReadDeadline(time.Now().Add(patience)); err != nil {
				t.Fatal(err)
			}
			p := begin(t, exec.Command("headroom", "find", "--knob", "micro=--bs", "--knob", "accumulation=--acc", "--knob", "steps=--steps", "--knob", "output=--out", "--",
				"python3", "train.py", "--bs", "4", "--acc", "2"))
			lines := bufio.NewScanner(said)
			if !lines.Scan() {
				t.Fatalf("it does not run: %v\n%s", lines.Err(), p.stderr.String())
			}
			grandchild, err := strconv.Atoi(lines.Text())
			if err != nil || !lives(grandchild) {
				t.Fatalf("%q, %v", lines.Text(), err)
			}
			p.signal(s)
			if !lines.Scan() || lines.Text() != "heard "+map[syscall.Signal]string{syscall.SIGINT: "SIGINT", syscall.SIGTERM: "SIGTERM"}[s] {
				t.Errorf("it said %q, %v", lines.Text(), lines.Err())
			}
			if got := p.end(); got != 75 || !strings.Contains(p.stderr.String(), "stopping; nothing is kept") {
				t.Errorf("status %d\n%s", got, p.stderr.String())
			}
			if lives(grandchild) {
				t.Error("a grandchild outlived the search")
			}
			if entries, err := os.ReadDir(os.Getenv("TMPDIR")); err != nil || len(entries) > 0 {
				t.Errorf("%v is left, %v", entries, err)
			}
		})
	}
}
