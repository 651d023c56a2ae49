package child

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"headroom/wrap/command"
	"headroom/wrap/wraptest"
)

// lived runs a command as a child of this process, and returns how it ended and what it
// printed.
func lived(t *testing.T, o Options, args ...string) (command.Exit, string) {
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
func begun(t *testing.T, o Options, args ...string) (*Child, string) {
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
	case <-time.After(wraptest.Limit):
		t.Fatal("the child does not end")
	}
	return c.Wait()
}
