package main

import (
	"testing"

	"headroom/memory"
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
