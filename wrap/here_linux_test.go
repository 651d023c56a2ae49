package wrap

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"headroom/machine"
	"headroom/wrap/command"
)

// lived runs a command as a child of this process, and returns how it ended and what it
// printed.
func lived(t *testing.T, o ChildOptions, args ...string) (command.Exit, string) {
	t.Helper()
	c, out := begun(t, o, args...)
	exit := waited(t, c)
	text, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	return exit, string(text)
}

// begun starts a command as a child of this process. It returns the child and the name of
// the file for its output, which stays empty if o.Stdout is set.
func begun(t *testing.T, o ChildOptions, args ...string) (*Child, string) {
	t.Helper()
	out := filepath.Join(t.TempDir(), "out")
	file, err := os.Create(out)
	if err != nil {
		t.Fatal(err)
	}
	if o.Stdout == nil {
		o.Stdout, o.Stderr = file, file
	}
	c, err := Start(command.Line{Args: args, Env: os.Environ()}, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Stop(); c.Stop(); waited(t, c); _ = file.Close() })
	return c, out
}

func waited(t *testing.T, c *Child) command.Exit {
	t.Helper()
	select {
	case <-c.Done():
	case <-time.After(limit):
		t.Fatal("the child does not end")
	}
	return c.Wait()
}

// eventually waits until so returns true, and fails the test if that takes longer than
// limit.
func eventually(t *testing.T, what string, so func() bool) {
	t.Helper()
	look := time.NewTicker(2 * time.Millisecond)
	defer look.Stop()
	for late := time.After(limit); !so(); {
		select {
		case <-look.C:
		case <-late:
			t.Fatalf("not within %v: %s", limit, what)
		}
	}
}

// gone reports whether a process has ended, even if nobody has reaped it yet.
func gone(pid string) bool {
	number, _ := strconv.Atoi(pid)
	p, ok := machine.LookAtProcess(number)
	return !ok || p.Dead
}
