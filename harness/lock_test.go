package harness

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// TestLockOfAFolderThatWasSetAside has the folder renamed, and another run's
// made in its place, while its lock is waited for: neither may be taken.
func TestLockOfAFolderThatWasSetAside(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	if err := mustOpen(t, dir).Close(); err != nil {
		t.Fatal(err)
	}
	meant, err := os.Open(filepath.Join(dir, "lock"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = meant.Close() })
	if to, err := SetAside(dir); to != dir+".1" || err != nil {
		t.Fatal(to, err)
	}
	other := mustOpen(t, dir)
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	var locked *Locked
	if _, err := lockMeant(dir, meant); !errors.As(err, &locked) || locked.Dir != dir {
		t.Fatalf("error %v, want that the folder is in use", err)
	}
	if err := mustOpen(t, dir).Close(); err != nil {
		t.Errorf("the lock was kept: %v", err)
	}
}
