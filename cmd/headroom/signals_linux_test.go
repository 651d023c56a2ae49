package main

import (
	"errors"
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// TestNoSignalIsDropped checks that a signal is still answered if it arrives just before
// done restores the default effect of signals.
func TestNoSignalIsDropped(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for n := range 100 {
		heard := 0
		ctx, interrupt, done := stopping(t.Context(), func(os.Signal, bool) { heard++ })
		err := unix.Tgkill(os.Getpid(), unix.Gettid(), unix.SIGHUP)
		done()
		select {
		case <-interrupt:
		default:
			err = errors.Join(err, errors.New("not heard"))
		}
		if err != nil || heard != 1 || ctx.Err() == nil {
			t.Fatalf("call %d: %v, heard %d times, context %v", n, err, heard, ctx.Err())
		}
	}
}
