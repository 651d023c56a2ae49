package runs

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestLockOfAFolderThatWasSetAside renames a folder, and puts the folder of another run
// in its place, while a process waits for the lock. The process must not get either
// folder.
func TestLockOfAFolderThatWasSetAside(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	if err := mustOpen(t, dir).Close(); err != nil {
		t.Fatal(err)
	}
	meant, err := os.Open(filepath.Join(dir, "lock"))
	if err != nil {
		t.Fatal(err)
	}
	if to, err := SetAside(dir); to != dir+".1" || err != nil {
		t.Fatal(to, err)
	}
	other := mustOpen(t, dir)
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	var locked *LockedError
	if err := lockMeant(dir, meant); !errors.As(err, &locked) || locked.Dir != dir {
		t.Fatalf("error %v, want that the folder is in use", err)
	}
	if err := errors.Join(meant.Close(), mustOpen(t, dir).Close()); err != nil {
		t.Errorf("the lock was kept: %v", err)
	}
}

// TestHandOver hands a folder over through the descriptor of its lock alone, as if to
// an executed program, and checks that nobody else can open the folder in between.
func TestHandOver(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	first := mustOpen(t, dir)
	if err := first.Record(Entry{Kind: KindAttempt, Attempt: 7}); err != nil {
		t.Fatal(err)
	}
	held := func(when string) {
		t.Helper()
		var locked *LockedError
		if _, err := Open(dir); !errors.As(err, &locked) || locked.PID != os.Getpid() || !alive(dir) {
			t.Errorf("%s: %v", when, err)
		}
	}
	lock, err := first.HandOver()
	if err != nil {
		t.Fatal(err)
	}
	if flags, err := unix.FcntlInt(lock.Fd(), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC != 0 {
		t.Errorf("a program that is executed does not get the lock: flags %d, %v", flags, err)
	}
	held("handed over")
	inherited, err := unix.Dup(int(lock.Fd()))
	if err := errors.Join(err, lock.Close()); err != nil {
		t.Fatal(err)
	}
	held("on its way")
	second, err := Inherit(dir, inherited)
	if err != nil {
		t.Fatal(err)
	}
	if flags, err := unix.FcntlInt(uintptr(inherited), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
		t.Errorf("every program gets the lock: flags %d, %v", flags, err)
	}
	held("taken over")
	if n := second.Tally().Attempts; n != 7 {
		t.Errorf("attempt %d, want 7", n)
	}
	if err := errors.Join(second.Close(), mustOpen(t, dir).Close()); err != nil {
		t.Error(err)
	}
}

// TestInheritNothing checks that descriptors that are not the folder's lock are refused.
func TestInheritNothing(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	if err := mustOpen(t, dir).Close(); err != nil {
		t.Fatal(err)
	}
	other, err := unix.Open(t.TempDir(), unix.O_RDONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range []int{-1, 1 << 20, other} {
		if _, err := Inherit(dir, fd); err == nil || !strings.Contains(err.Error(), "take over its lock") {
			t.Errorf("descriptor %d: %v", fd, err)
		}
	}
}
