// Command headroom runs a training job to completion in whatever GPU memory there
// is.
//
//	headroom run -- COMMAND          any training command
//	headroom explain -- COMMAND      what is known about it, and what could go wrong
//	headroom run gpt                 train a preset
//	headroom run my.yaml --set batch.micro=8
//	headroom find my.yaml            the largest micro-batch that fits, and a plan
//	headroom doctor                  what would go wrong tonight
//	headroom status                  every run and how far it has got
//	headroom report NAME             draw a run's report again
//
// The package is the shell around the packages below it: it reads the command
// line (one file per command), wires a configuration to harness.Run, shows what
// happens and turns the outcome into an exit status. What a user sees is in the
// package ui below: every line, the terminal, the one table of exit statuses.
// Nothing is decided here.
//
// signals.go answers requests to stop: after the first signal headroom waits for
// the run, after the second one it abandons the run. crash.go makes sure
// that a crash can be told apart from every other end, by its status and by a trace.
//
// Messages go to stderr. stdout belongs to what was asked for: the answer of a
// command, or one JSON object per line with --json.
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
	if u.Message != "" {
		u.LeaveMessage(err)
	}
	return err
}
