package worker

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"headroom/harness"
	"headroom/runs"
)

// books replaces a session's journal in a test. Its fields may be read only after End
// has returned.
type books struct {
	harness.Journal
	mu      sync.Mutex
	entries []runs.Entry
	steps   []runs.ProcessStep
	pieces  int
}

func (b *books) Stepped(s runs.ProcessStep) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.steps = append(b.steps, s)
}

func (b *books) Note(e runs.Entry) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.entries = append(b.entries, e)
}

func (b *books) Survived(e runs.Entry) {
	e.Kind = runs.KindSurvived
	b.Note(e)
}

func (b *books) Pieces() int { return b.pieces }

func (b *books) KeepPieces(rows int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.pieces = rows
}

// kept returns what KeepPieces was called with last.
func (b *books) kept() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.pieces
}

// texts returns the texts of the entries of one kind.
func (b *books) texts(k runs.Kind) (all []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, e := range b.entries {
		if e.Kind == k {
			all = append(all, e.Text)
		}
	}
	return all
}

// begun begins an attempt for a test, in a temporary folder of its own, and checks
// at the end of the test that the attempt has left nothing in it.
func begun(t testing.TB, b *books, mode Mode) *Attempt {
	t.Helper()
	temp, err := os.MkdirTemp("", "hw") // a test's own folder may have too long a name for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		left, _ := os.ReadDir(temp)
		if len(left) > 0 {
			t.Errorf("%s outlived the attempt", left[0].Name())
		}
		if err := os.RemoveAll(temp); err != nil {
			t.Error(err)
		}
	})
	l, err := Begin(Options{Mode: mode, Journal: b, Version: "1.2.3", temp: temp})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func ended(t testing.TB, l *Attempt) Ended {
	t.Helper()
	seen, err := l.End()
	if err != nil {
		t.Fatal(err)
	}
	return seen
}

// client acts as a process of the command in a test.
type client struct {
	t     testing.TB
	conn  net.Conn
	lines *json.Decoder
}

func dial(t testing.TB, l *Attempt) *client {
	t.Helper()
	conn, err := net.Dial("unix", l.Socket())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return &client{t, conn, json.NewDecoder(conn)}
}

func (c *client) send(text string) {
	c.t.Helper()
	if _, err := c.conn.Write([]byte(text + "\n")); err != nil {
		c.t.Fatal(err)
	}
}

// hears returns the next answer from headroom.
func (c *client) hears() (a answer) {
	c.t.Helper()
	if err := c.conn.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
		c.t.Fatal(err)
	}
	if err := c.lines.Decode(&a); err != nil {
		c.t.Fatal(err)
	}
	return a
}

// read waits until headroom has read everything that the process has sent: it answers each hello.
func (c *client) read() {
	c.send(helloLine(0, 1))
	c.hears()
}

// stub replaces the worker in the attempt's package with one that only says hello at the
// first step of an optimizer. This is enough for tests of how the worker gets into a
// process.
func stub(t testing.TB, l *Attempt) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", "_torch.py"))
	if err == nil {
		err = os.WriteFile(filepath.Join(l.folder.inject(), "headroom_train", "_torch.py"), text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// python is a Python 3 interpreter that runs with a fake torch.
type python struct {
	program string
	env     []string // added to the test's own environment
	path    []string // PYTHONPATH, in front of the fake torch
}

// said holds what a Python process printed, and its exit status.
type said struct {
	out, err string
	status   int
}

// run runs Python, in the attempt's environment unless l is nil.
func (p python) run(t testing.TB, l *Attempt, words ...string) said {
	t.Helper()
	fake, err := filepath.Abs(filepath.Join("testdata", "fake"))
	if err != nil {
		t.Fatal(err)
	}
	env := append(os.Environ(), "PYTHONPATH="+strings.Join(append(p.path, fake), ":"), "PYTHONDONTWRITEBYTECODE=1", "HEADROOM_SOCKET=")
	if l != nil {
		env = l.Env(env)
	}
	c := exec.Command(p.program, words...)
	c.Env = append(env, p.env...)
	var out, errs bytes.Buffer
	c.Stdout, c.Stderr = &out, &errs
	if err := c.Run(); err != nil && !errors.As(err, new(*exec.ExitError)) {
		t.Fatal(err)
	}
	return said{out.String(), errs.String(), c.ProcessState.ExitCode()}
}

// anyPython returns a Python 3 on this machine, preferably the one in the environment that "make
// torch" builds. If there is none, it skips the test.
func anyPython(t testing.TB) python {
	t.Helper()
	for _, name := range []string{os.Getenv("HEADROOM_PYTHON"), "python3"} {
		if path, err := exec.LookPath(name); err == nil {
			found, err := exec.Command(path, "-c", "import sys; print(sys.executable)").Output() // the interpreter itself rather than a shim
			if err != nil {
				t.Fatal(err)
			}
			return python{program: strings.TrimSpace(string(found))}
		}
	}
	t.Skip("SKIPPED: there is no Python")
	return python{}
}

// pythonWithTorch returns the interpreter of the environment that "make torch" builds. If
// there is none, the test is skipped; if HEADROOM_REQUIRE_TORCH=1 is set, the test fails
// instead.
func pythonWithTorch(t testing.TB) string {
	t.Helper()
	path := os.Getenv("HEADROOM_PYTHON")
	if path == "" {
		if os.Getenv("HEADROOM_REQUIRE_TORCH") == "1" {
			t.Fatal("HEADROOM_PYTHON is not set: make torch, then make test")
		}
		t.Skip("SKIPPED: no PyTorch: make torch builds an environment for this test")
	}
	return path
}

// jupyter returns the folder that "make notebook" fills, as pythonWithTorch returns its environment.
func jupyter(t testing.TB) string {
	t.Helper()
	path := os.Getenv("HEADROOM_NOTEBOOK")
	if path == "" {
		if os.Getenv("HEADROOM_REQUIRE_TORCH") == "1" {
			t.Fatal("HEADROOM_NOTEBOOK is not set: make notebook, then make test")
		}
		t.Skip("SKIPPED: no Jupyter: make notebook fetches it for this test")
	}
	return path
}

func script(name string) string { return filepath.Join("testdata", "scripts", name) }

// helloLine returns a process's first message.
func helloLine(rank, world int) string {
	return fmt.Sprintf(`{"type":"hello","v":2,"rank":%d,"world":%d,"python":"3.11.7","torch":"2.11.0","mode":"armed","colour":"red"}`, rank, world)
}
