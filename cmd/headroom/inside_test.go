package main

import (
	"bytes"
	"path/filepath"
	"testing"

	"headroom/harness"
	"headroom/memory"
	"headroom/recovery"
	"headroom/runs"
	"headroom/worker"
	"headroom/wrap"
)

// TestAllowIsTheNextStep checks that a command that ended because something was not allowed
// gets that as its hint, and that no other command does.
func TestAllowIsTheNextStep(t *testing.T) {
	for why, want := range map[string]string{
		"BatchNorm1d computes statistics over the batch; with --allow batchnorm-pieces each piece would have statistics of its own": "run the command again with --allow batchnorm-pieces, if it is acceptable that the gradients are approximate",
		"one row alone does not fit": "",
	} {
		o := (&inside{}).ended(wrap.Command{}, wrap.Outcome{Kind: wrap.OutOfMemory}, worker.Ended{Attached: true, OOM: &memory.OutOfMemoryError{Requested: 1}, Why: why})
		if o.Hint != want {
			t.Errorf("%s: %q", why, o.Hint)
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
		{worker.Ended{Python: true, Torch: true, Watches: "several ranks would have to agree"}, "headroom: the worker was only watching: several ranks would have to agree\n"},
		{worker.Ended{Python: true, Torch: true, Failed: "x", Watches: "several ranks would have to agree"}, "headroom: the worker was not attached: x\n"},
		{worker.Ended{Python: true, Torch: true}, "headroom: the worker was not attached: torch was imported, but no optimizer took a step\n"},
		{worker.Ended{Python: true, Torch: true, Attached: true, Watches: "several ranks would have to agree"}, ""},
	} {
		var out bytes.Buffer
		folder, err := runs.Open(filepath.Join(t.TempDir(), "run"))
		if err != nil {
			t.Fatal(err)
		}
		session, err := harness.Begin(folder, harness.SessionOptions{Plan: recovery.Plan{Effective: 1, World: 1, Micro: 1}})
		if err != nil {
			t.Fatal(err)
		}
		u := &ui{screen: &screen{w: &out}}
		_ = (&inside{u: u, books: &books{Session: session}}).ended(wrap.Command{}, wrap.Outcome{Kind: wrap.OutOfMemory}, c.seen)
		if out.String() != c.want {
			t.Errorf("%+v: %q, want %q", c.seen, out.String(), c.want)
		}
		if err := folder.Close(); err != nil {
			t.Error(err)
		}
	}
}
