package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"headroom/cmd/headroom/ui"
)

func main() { os.Exit(mainStatus()) }

// mainStatus does the work of main and returns the exit status, so that its deferred
// calls run before the process exits.
func mainStatus() int {
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
	return ui.ExitStatus(err)
}
