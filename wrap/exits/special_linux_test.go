package exits

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"headroom/wrap/wraptest"
)

// TestPipesAreNotRead checks that a named pipe in the place of a launcher's error file is not
// opened, which would block.
func TestPipesAreNotRead(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mkfifo(filepath.Join(dir, errorFile), 0o600); err != nil {
		t.Fatal(err)
	}
	wraptest.Unblocked(t, "a launcher's error file", func() {
		if ranks, notes := ReadRankErrors(os.DirFS(dir)); len(ranks) != 0 || len(notes) != 1 {
			t.Error(ranks, notes)
		}
	})
}
