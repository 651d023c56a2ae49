package wraptest

import (
	"strconv"
	"syscall"
	"testing"
	"time"

	"headroom/machine"
)

// Limit is how long a test waits for a process: far longer than any process needs.
const Limit = time.Minute

// Eventually waits until so returns true, and fails the test if that takes longer than
// Limit.
func Eventually(t *testing.T, what string, so func() bool) {
	t.Helper()
	look := time.NewTicker(2 * time.Millisecond)
	defer look.Stop()
	for late := time.After(Limit); !so(); {
		select {
		case <-look.C:
		case <-late:
			t.Fatalf("not within %v: %s", Limit, what)
		}
	}
}

// Gone reports whether a process has ended, even if nobody has reaped it yet.
func Gone(pid string) bool {
	number, _ := strconv.Atoi(pid)
	p, ok := machine.LookAtProcess(number)
	return !ok || p.Dead
}

// Killed kills processes when the test is over.
func Killed(t *testing.T, numbers ...string) {
	t.Cleanup(func() {
		for _, number := range numbers {
			if pid, err := strconv.Atoi(number); err == nil && pid > 1 {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}
	})
}
