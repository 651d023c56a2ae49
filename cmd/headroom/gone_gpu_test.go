//go:build cuda

package main

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"headroom/runs"
)

// TestIllegalAddressRelaunches breaks the context of a real GPU in the middle of a run.
// Only a new process can continue the run, and it must arrive at the weights of a run
// that loses nothing.
func TestIllegalAddressRelaunches(t *testing.T) {
	if os.Getenv("HEADROOM_TEST_DEVICE") != "cuda" {
		t.Skip("needs HEADROOM_TEST_DEVICE=cuda")
	}
	const steps = mortalEvery + 1
	inEmptyFolder(t, "mortal.yaml", strings.ReplaceAll(fmt.Sprintf(mortal, steps, mortalEvery), "kind: host", "kind: cuda"))
	whole := start(t, "run", "mortal.yaml", "--name", "whole")
	if got := whole.end(); got != 0 {
		t.Fatalf("exit status %d\n%s", got, whole.stderr.String())
	}
	t.Setenv(loseReallyKey, "1")
	p := startLossy(t, 30, 1, "run", "mortal.yaml")
	if got := p.end(); got != 0 {
		t.Fatalf("exit status %d\n%s", got, p.stderr.String())
	}
	kinds := kindsIn(t, "runs/mortal")
	if kinds[runs.KindGone] != 1 || kinds[runs.KindAttempt] != 2 || kinds[runs.KindDone] != 1 {
		t.Errorf("the journal has %v", kinds)
	}
	if text := p.stderr.String(); !strings.Contains(text, "IllegalAddress") {
		t.Errorf("the driver's error is not told:\n%s", text)
	}
	t.Log(p.stderr.String())
	final := fmt.Sprintf("checkpoints/step-%06d/state.safetensors", steps)
	if hashOf(t, "runs/mortal/"+final) != hashOf(t, "runs/whole/"+final) {
		t.Error("the weights differ from those of a run that lost nothing")
	}
}
