package wrap

import (
	"errors"
	"io"
	"os"
	"time"
)

// ChildOptions say how a life is started and ended. The zero value is usable.
type ChildOptions struct {
	// Stdin, Stdout and Stderr are what the child would have had without headroom;
	// nil means this process's own. They still belong to the caller, who must not
	// close them before Wait returns.
	Stdin, Stdout, Stderr *os.File
	// Bare gives the child these very files. Then there is no log and no tail.
	Bare bool
	// Log receives the bytes of both streams as they come, from one goroutine at a
	// time and never after Wait has returned, unless the reader of a stream was too
	// slow for a killed child. What it fails to write is missing from the log alone.
	Log io.Writer
	// TailBytes is how much of the newest output Exit.Tail keeps, 256 KiB if 0.
	TailBytes int
	// Patience is how long the child has from the first Stop until it is killed,
	// 120 s if 0: trainers may take minutes to save.
	Patience time.Duration
	// Grace is how long the processes that a child leaves behind have to end once
	// they are asked to, 10 s if 0.
	Grace time.Duration
	// Standby is what [StandBy] began to make for this life; nil makes one now.
	Standby *Standby
	// Before is called right before the program is executed, when signals are already
	// caught: none is lost between this call and the child. If it returns an error,
	// nothing is started and Start returns that error. It may be nil.
	Before func() error
	// Trouble is called with what went wrong around the child, such as a full disk under
	// the log, once for each problem. It is called from several goroutines and must not
	// block. It may be nil.
	Trouble func(error)

	after func(time.Duration, func()) stopper // time.AfterFunc, if nil
}

// stopper is a [time.Timer], or a test's stand-in for one.
type stopper interface{ Stop() bool }

// ErrBusy is what Start returns while another child of this process lives: orphans
// of two trees cannot be told apart.
var ErrBusy = errors.New("another command is still running")

// StartError is a command that could not be started.
type StartError struct {
	Program string // as the command names it
	Code    int    // exit status that a shell gives: 127 if it is not found, 126 if it cannot be executed
	Err     error
}

func (e *StartError) Error() string { return "start " + e.Program + ": " + e.Err.Error() }
func (e *StartError) Unwrap() error { return e.Err }

// withDefaults fills in what was left out.
func (o ChildOptions) withDefaults() ChildOptions {
	for file, own := range map[**os.File]*os.File{&o.Stdin: os.Stdin, &o.Stdout: os.Stdout, &o.Stderr: os.Stderr} {
		if *file == nil {
			*file = own
		}
	}
	if o.TailBytes <= 0 {
		o.TailBytes = 256 << 10
	}
	if o.Patience <= 0 {
		o.Patience = 2 * time.Minute
	}
	if o.Grace <= 0 {
		o.Grace = 10 * time.Second
	}
	if o.Before == nil {
		o.Before = func() error { return nil }
	}
	if o.Trouble == nil {
		o.Trouble = func(error) {}
	}
	if o.after == nil {
		o.after = func(d time.Duration, f func()) stopper { return time.AfterFunc(d, f) }
	}
	return o
}
