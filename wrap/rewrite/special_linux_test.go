package rewrite

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"headroom/wrap/command"
	"headroom/wrap/wraptest"
)

// TestPipesAreNotRead checks that a named pipe that a command gives as a configuration is not
// opened, which would block.
func TestPipesAreNotRead(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mkfifo(filepath.Join(dir, "config.yaml"), 0o600); err != nil {
		t.Fatal(err)
	}
	wraptest.Unblocked(t, "a configuration", func() {
		m := &Match{Command: command.Line{Dir: dir}, Given: Given{Files: os.DirFS("/")}}
		if _, err := m.read("config.yaml"); err == nil || !strings.Contains(err.Error(), "is a named pipe") {
			t.Error(err)
		}
	})
}
