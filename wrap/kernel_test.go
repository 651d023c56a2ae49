package wrap

import (
	"context"
	"errors"
	"strings"
	"syscall"
	"testing"

	"headroom/harness"
	"headroom/wrap/command"
	"headroom/wrap/exits"
)

// TestKernelIsEnded checks that a Jupyter kernel that was told to stop, and did, has finished: a restart and a
// shutdown are no failures. Any other command has been interrupted.
func TestKernelIsEnded(t *testing.T) {
	for name, c := range map[string]struct {
		serves   bool
		exit     command.Exit
		finished bool
	}{
		"by a signal":     {true, command.Exit{Code: 143, Signal: syscall.SIGTERM, Stopped: true}, true},
		"by itself":       {true, command.Exit{Stopped: true}, true},
		"killed":          {true, command.Exit{Code: 137, Signal: syscall.SIGKILL, Stopped: true}, false},
		"with an error":   {true, command.Exit{Code: 1, Stopped: true}, false},
		"another command": {false, command.Exit{Code: 143, Signal: syscall.SIGTERM, Stopped: true}, false},
	} {
		r := &runner{serves: c.serves}
		again, err := r.follow(context.Background(), exits.Outcome{Kind: exits.Stopped}, c.exit)
		if again || c.finished != (err == nil) || err != nil && !errors.Is(err, harness.ErrInterrupted) {
			t.Errorf("%s: %v, %v", name, again, err)
		}
	}
}

func TestWhatIsAKernel(t *testing.T) {
	for words, want := range map[string]bool{
		"python -m ipykernel_launcher --ext=headroom_train -f k.json": true,
		"/env/bin/python3 -m ipykernel -f k.json":                     true,
		"python -m train -f k.json":                                   false,
		"python ipykernel_launcher.py":                                false,
		"sleep 1":                                                     false,
	} {
		w := &Wrapped{}
		w.Line.Args = strings.Fields(words)
		if got := w.serves(); got != want {
			t.Errorf("%s: %v", words, got)
		}
	}
}
