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
	// this the runtime dies on the first write after it.
	signal.Ignore(syscall.SIGPIPE)
	u := newUI(os.Stdout, os.Stderr, os.LookupEnv)
	app := newApp(u)
	err := app.RunContext(context.Background(), flagsFirst(app, os.Args))
	u.failed(err)
	return exitStatus(err)
}
