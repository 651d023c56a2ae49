package main

import (
	"context"
	"os"
	"os/signal"
	"sync"
	"syscall"
)

// stopping turns signals into the two ways a run can be asked to end. The first
// one closes interrupt: finish the step, save, go. The second one cancels the
// context: stop now. From the third on the system's default applies, so a
// device that hangs cannot hold the terminal. done gives the signals back, after
// which every one that came before has been answered; it may be called twice.
//
// A signal that was ignored when the process started (nohup, a background job
// of a script) stays ignored.
func stopping(ctx context.Context, heard func(s os.Signal, again bool)) (_ context.Context, interrupt <-chan struct{}, done func()) {
	ctx, cancel := context.WithCancel(ctx)
	signals := make(chan os.Signal, 2)
	for _, s := range []os.Signal{os.Interrupt, syscall.SIGTERM, syscall.SIGHUP} {
		if !signal.Ignored(s) {
			signal.Notify(signals, s)
		}
	}
	asked, answered := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(answered)
		if s, more := <-signals; more {
			heard(s, false)
			close(asked)
		}
		if s, more := <-signals; more {
			signal.Stop(signals)
			heard(s, true)
			cancel()
		}
	}()
	return ctx, asked, sync.OnceFunc(func() {
		signal.Stop(signals)
		close(signals)
		<-answered
		cancel()
	})
}
