package main

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"syscall"
	"time"

	"headroom/cmd/headroom/ui"
)

func main() {
	err := run()
	if child := (*ui.ChildError)(nil); errors.As(err, &child) && child.Interrupted {
		// A shell goes on with a loop after Ctrl-C unless the program in it has died of the signal.
		signal.Reset(syscall.SIGINT)
		_ = syscall.Kill(os.Getpid(), syscall.SIGINT)
		time.Sleep(time.Second) // another thread handles it; if it is blocked, the status says the same
	}
	os.Exit(ui.ExitStatus(err))
}

// run does the work of main, so that its deferred calls run before the process exits.
func run() error {
	// A reader of stdout that goes away must not end a night's training: without this call,
	// the next write would kill the process. SIGPIPE is caught and not ignored, because the
	// user's command would inherit an ignored signal.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	ours, command := cutCommand(os.Args)
	crashesAbort(os.LookupEnv, command == nil)
	u := ui.New(os.Stdout, os.Stderr, os.LookupEnv)
	app := newApp(u)
	ctx := context.WithValue(context.Background(), commandKey{}, command)
	err := app.RunContext(ctx, flagsFirst(app, ours))
	u.Failed(err)
	return err
}
