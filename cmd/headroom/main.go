package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

func main() { os.Exit(mainStatus()) }

// mainStatus is main with its exit status returned, so that nothing deferred is
// skipped.
func mainStatus() int {
	// A reader of stdout that goes away must not end a night's training: without
	// this call the runtime dies on the next write. The signal is caught, not ignored,
	// because a command that is started would inherit an ignored signal. If headroom itself
	// was started with it ignored, makeAhead ignores it again, on another goroutine: so call Notify first.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	ours, command := cutCommand(os.Args)
	ahead := makeAhead(ours, command)
	defer ahead.folder.Discard()
	crashesAbort(os.LookupEnv, command == nil)
	u := newUI(os.Stdout, os.Stderr, os.LookupEnv)
	app := newApp(u)
	ctx := context.WithValue(context.Background(), commandKey{}, afterDashes{command, ahead})
	err := app.RunContext(ctx, flagsFirst(app, ours))
	u.failed(err)
	return exitStatus(err)
}
