package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"headroom/device/devicetest"
	"headroom/runs"
)

// mortal is the configuration of the run that is killed. Its steps are quick, and its
// checkpoints are so frequent that many of the kills happen while one is being written.
const (
	mortalEvery = 7
	mortal      = `model: {kind: mlp, layers: 2, width: 16, dropout: 0.1}
data: {kind: blobs, samples: 64, features: 4, classes: 2}
batch: {effective: 8, micro: 3}
train: {steps: %d, checkpoint_every: %d, keep: 2}
device: {kind: host, capacity: 1MiB}
`
)

// TestKilledAtAnyMoment kills a run again and again, each time after it has
// printed a random number of lines, and lets it continue. A kill may cost the
// steps since the newest checkpoint and nothing else: no checkpoint is incomplete,
// and in the end the weights are bit for bit those of a run that was never killed.
func TestKilledAtAnyMoment(t *testing.T) {
	kills := 50
	if testing.Short() {
		kills = 10
	}
	steps := kills * 2 * mortalEvery
	inEmptyFolder(t, "mortal.yaml", fmt.Sprintf(mortal, steps, mortalEvery))
	random := rand.New(rand.NewPCG(devicetest.Seed(t), 0))

	whole := start(t, "run", "mortal.yaml", "--name", "whole")
	if got := whole.end(); got != 0 {
		t.Fatalf("exit status %d\n%s", got, whole.stderr.String())
	}
	torn, lost := 0, 0
	for kill := 1; kill <= kills; kill++ {
		newest := newestCheckpoint(t)
		p := start(t, "run", "mortal.yaml")
		last := newest
		for range random.IntN(3 * mortalEvery) {
			l, more := p.next()
			if !more {
				break
			}
			switch {
			case l.Kind == string(runs.KindAttempt) && l.Step != newest:
				t.Fatalf("kill %d: went on from step %d, the newest checkpoint is of step %d", kill, l.Step, newest)
			case l.Kind == "step":
				last = l.Step
			}
		}
		_ = p.cmd.Process.Kill()
		if got := p.end(); got == 0 {
			t.Fatalf("kill %d came after the end: more steps are needed", kill)
		}
		torn += checkWhole(t)
		cost := last - newestCheckpoint(t)
		if cost > mortalEvery {
			t.Fatalf("kill %d cost %d steps, checkpoints are %d apart", kill, cost, mortalEvery)
		}
		lost += max(0, cost)
	}
	t.Logf("%d kills: %d steps made again, %d times a checkpoint was being written", kills, lost, torn)

	end := start(t, "run", "mortal.yaml")
	if got := end.end(); got != 0 {
		t.Fatalf("the last run: exit status %d\n%s", got, end.stderr.String())
	}
	final := fmt.Sprintf("checkpoints/step-%06d/state.safetensors", steps)
	if hashOf(t, "runs/mortal/"+final) != hashOf(t, "runs/whole/"+final) {
		t.Error("the weights differ from those of a run that was never killed")
	}
	everyStepOnce(t, steps)
}

// newestCheckpoint returns the step of the newest checkpoint, according to the name of
// its folder, or 0 if there is none.
func newestCheckpoint(t *testing.T) (newest int) {
	t.Helper()
	dirs, err := filepath.Glob("runs/mortal/checkpoints/step-*")
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range dirs {
		var step int
		if _, err := fmt.Sscanf(filepath.Base(dir), "step-%d", &step); err != nil {
			t.Fatal(err)
		}
		newest = max(newest, step)
	}
	return newest
}

// checkWhole fails the test unless every checkpoint under its final name is complete. It
// returns how many others were left half-written under a temporary name.
func checkWhole(t *testing.T) (beside int) {
	t.Helper()
	dirs, err := os.ReadDir("runs/mortal/checkpoints")
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	for _, dir := range dirs {
		if strings.HasPrefix(dir.Name(), ".") {
			beside++
			continue
		}
		path := filepath.Join("runs/mortal/checkpoints", dir.Name())
		text, err := os.ReadFile(filepath.Join(path, "meta.json"))
		if err != nil {
			t.Fatal(err)
		}
		var meta runs.Checkpoint
		if err := json.Unmarshal(text, &meta); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		if got := hashOf(t, filepath.Join(path, "state.safetensors")); got != meta.SHA256 {
			t.Fatalf("%s is half a checkpoint", path)
		}
	}
	return beside
}

func hashOf(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:])
}

// everyStepOnce checks that the metrics of the killed run equal those of the run that was
// not killed: every step appears once, with the same samples, loss and gradient norm.
func everyStepOnce(t *testing.T, steps int) {
	t.Helper()
	killed, err := runs.ReadMetrics("runs/mortal")
	if err != nil {
		t.Fatal(err)
	}
	whole, err := runs.ReadMetrics("runs/whole")
	if err != nil {
		t.Fatal(err)
	}
	if len(killed) != steps || len(whole) != steps {
		t.Fatalf("%d and %d steps in the metrics, want %d", len(killed), len(whole), steps)
	}
	for i := range killed {
		a, b := killed[i], whole[i]
		if a.Step != b.Step || a.First != b.First || a.Loss != b.Loss || a.GradNorm != b.GradNorm {
			t.Fatalf("step %d: %+v after kills, %+v without", i+1, a, b)
		}
	}
}
