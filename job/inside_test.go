package job

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"headroom/harness"
	"headroom/memory"
	"headroom/recovery"
	"headroom/runs"
	"headroom/worker"
	"headroom/wrap/exits"
)

// TestHintFromInside checks that what a process says would help is passed on, unless something else is known to help.
func TestHintFromInside(t *testing.T) {
	for _, c := range []struct{ before, want string }{{"", "load less"}, {"do this", "do this"}} {
		seen := worker.Ended{Attached: true, OOM: &memory.OutOfMemoryError{Requested: 1}, Hint: "load less"}
		o := (&inside{}).ended(exits.Outcome{Kind: exits.OutOfMemory, Hint: c.before}, seen)
		if o.Hint != c.want {
			t.Errorf("%q, want %q", o.Hint, c.want)
		}
	}
}

// TestFragmentsAreAHint checks that expandable segments are suggested where memory was free in pieces
// that would have been enough, and not elsewhere.
func TestFragmentsAreAHint(t *testing.T) {
	failure := memory.OutOfMemoryError{Requested: 3 * memory.GiB, Phase: memory.PhaseForward, Stats: memory.Stats{Capacity: 24 * memory.GiB, Reserved: 24 * memory.GiB, Allocated: 20 * memory.GiB}}
	for pieces, want := range map[memory.Bytes]string{
		4 * memory.GiB: "set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, which would have held it: at least 3 GiB of the pieces are whole pages, which can then be put together",
		2 * memory.GiB: "load less",
	} {
		failure.Fragments = &memory.Fragments{Pieces: pieces, Number: 2, Largest: memory.GiB, Pages: pieces - memory.GiB}
		seen := worker.Ended{Attached: true, OOM: &failure, Hint: "load less"}
		o := (&inside{}).ended(exits.Outcome{Kind: exits.OutOfMemory, Evidence: &memory.Evidence{}}, seen)
		if o.Hint != want {
			t.Errorf("%v: %q, want %q", pieces, o.Hint, want)
		}
	}
}

// TestWhyNothingWasDone checks what is said of a command that ran out of memory before any of its
// processes had said hello.
func TestWhyNothingWasDone(t *testing.T) {
	for _, c := range []struct {
		seen worker.Ended
		want string
	}{
		{worker.Ended{Python: true, Torch: true, Watches: "several ranks would have to agree"}, "the worker was only watching: several ranks would have to agree"},
		{worker.Ended{Python: true, Torch: true, Failed: "x", Watches: "several ranks would have to agree"}, "the worker was not attached: x"},
		{worker.Ended{Python: true, Torch: true}, "the worker was not attached: torch was imported, but no optimizer took a step"},
		{worker.Ended{Python: true, Torch: true, Attached: true, Watches: "several ranks would have to agree"}, ""},
	} {
		var told teller
		_ = (&inside{to: &told, Options: worker.Options{Journal: newSession(t)}}).ended(exits.Outcome{Kind: exits.OutOfMemory}, c.seen)
		if said := strings.Join(told, "\n"); said != c.want {
			t.Errorf("%+v: %q, want %q", c.seen, said, c.want)
		}
	}
}

// teller is a [wrap.Reporter] that remembers what it is told.
type teller []string

func (t *teller) Entry(e runs.Entry)              { *t = append(*t, e.Text) }
func (t *teller) Say(format string, args ...any)  { *t = append(*t, fmt.Sprintf(format, args...)) }
func (t *teller) Warn(format string, args ...any) { *t = append(*t, fmt.Sprintf(format, args...)) }

// newSession returns the session of a run that has just begun.
func newSession(t *testing.T) *harness.Session {
	folder, err := runs.Open(filepath.Join(t.TempDir(), "run"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := folder.Close(); err != nil {
			t.Error(err)
		}
	})
	session, err := harness.Begin(folder, harness.SessionOptions{Plan: recovery.Plan{Effective: 1, World: 1, Micro: 1}})
	if err != nil {
		t.Fatal(err)
	}
	return session
}

// TestStepsMadeDuringAnAttempt checks that the steps of the newest attempt can be asked for while its processes
// report them, and that those of an earlier attempt do not count. The race detector watches.
func TestStepsMadeDuringAnAttempt(t *testing.T) {
	session := newSession(t)
	i := &inside{Options: worker.Options{Journal: session}}
	reported := make(chan struct{})
	go func() {
		defer close(reported)
		for made := range 100 {
			session.Stepped(runs.ProcessStep{Made: made})
		}
	}()
	for range 100 {
		if made := i.Made(); made < 0 || made > 99 {
			t.Fatalf("%d steps", made)
		}
	}
	<-reported
	if made := i.Made(); made != 99 {
		t.Errorf("%d steps, not 99", made)
	}
	if err := session.Attempt(nil); err != nil {
		t.Fatal(err)
	}
	if made := i.Made(); made != 0 {
		t.Errorf("%d steps of an earlier attempt", made)
	}
}
