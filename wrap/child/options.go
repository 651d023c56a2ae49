package child

import (
	"errors"
	"io"
	"os"
	"time"
)

// Options say how a child is started and ended. The zero value is usable.
type Options struct {
	// Stdin, Stdout and Stderr are the files that the child would have had without
	// headroom; nil means this process's own. They still belong to the caller, who must
	// not close them before Wait returns.
	Stdin, Stdout, Stderr *os.File
	// Bare passes Stdin, Stdout and Stderr themselves to the child, instead of copying
	// its output. Then there is no log and no tail.
	Bare bool
	// Log receives the bytes of both streams as they come, from one goroutine at a time.
	// It is not used after Wait has returned, with one exception: the child was killed,
	// and a reader of its output was so slow that Wait gave up on it. If a write to Log
	// fails, the bytes are missing only from the log.
	Log io.Writer
	// TailBytes is how much of the newest output Exit.Tail keeps; 0 means 256 KiB.
	TailBytes int
	// Patience is the time from the first Stop until the child is killed; 0 means 120 s,
	// since trainers may take minutes to save.
	Patience time.Duration
	// Leave leaves running what the command leaves behind when it ends by itself, and lists it in
	// [Child.Left]. Such processes keep the output that they have: if it was recorded, a process of
	// its own passes on the rest of it. After a request to stop, what is left in the command's
	// process group is still ended.
	Leave bool
	// Grace is how long processes that a child leaves behind may keep running after they
	// have been asked to end; 0 means [Grace].
	Grace time.Duration
	// Before is called right before the program is executed. Signals are already caught
	// by then, so none is lost between this call and the child. If it returns an error,
	// nothing is started and Start returns that error. It may be nil.
	Before func() error
	// Trouble is called once for each problem in running the child, such as a full disk
	// that leaves gaps in the log. It is called from several goroutines and must not
	// block. It may be nil.
	Trouble func(error)

	after func(time.Duration, func()) stopper // time.AfterFunc, if nil
}

// Grace is how long processes that are left behind may take to end after they have been
// asked to.
const Grace = 10 * time.Second

// stopper is a [time.Timer], or a test's stand-in for one.
type stopper interface{ Stop() bool }

// ErrBusy is returned by [Start] while another child of this process is running: the
// orphans of two process trees could not be told apart.
var ErrBusy = errors.New("another command is still running")

// withDefaults returns o with defaults for the fields that are not set.
func (o Options) withDefaults() Options {
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
		o.Grace = Grace
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
