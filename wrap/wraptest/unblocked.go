package wraptest

import (
	"testing"
	"time"
)

// Unblocked fails the test if f has not returned after a while, which it does unless it is
// blocked.
func Unblocked(t *testing.T, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() { defer close(done); f() }()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Fatalf("%s: blocked", what)
	}
}
