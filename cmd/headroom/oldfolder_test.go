package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"headroom/runs"
)

// oldConfig is the configuration of the run in testdata/folder-b563193. The headroom
// program that created this run was built from commit b563193, the last one before runs
// became a package. During the run another process took memory, and the run survived
// that.
const oldConfig = `name: old
model: {kind: mlp, layers: 1, width: 8}
data: {kind: blobs, samples: 640, features: 4, classes: 2}
batch: {effective: 64, micro: 64}
train: {steps: 24, checkpoint_every: 10, keep: 1}
device: {kind: host, capacity: 32KiB, squeeze: [{from: 5, to: 15, take: 9KiB}]}
memory: {grow_after: 4}
`

// TestFolderOfAnOlderProgram checks that headroom can draw the report of a run that an
// earlier version created, read its status and continue it.
func TestFolderOfAnOlderProgram(t *testing.T) {
	old, err := filepath.Abs(filepath.Join("testdata", "folder-b563193"))
	if err != nil {
		t.Fatal(err)
	}
	inEmptyFolder(t, "old.yaml", oldConfig)
	dir := filepath.Join("runs", "old")
	if err := os.CopyFS(dir, os.DirFS(old)); err != nil {
		t.Fatal(err)
	}
	if said, err := exec.Command("headroom", "report", "old").CombinedOutput(); err != nil {
		t.Fatalf("report: %v\n%s", err, said)
	}
	text, err := os.ReadFile(filepath.Join(dir, "report.md"))
	if err != nil || !strings.Contains(string(text), "finished: 24 of 24 steps") || !strings.Contains(string(text), "foreign") {
		t.Errorf("%v\n%s", err, text)
	}
	if s, err := runs.ReadStatus(dir); err != nil || s.State != runs.StateDone || s.Failures != 2 || s.Plan.Micro != 64 {
		t.Errorf("%+v, %v", s, err)
	}
	p := start(t, "run", "old.yaml", "--set", "train.steps=40")
	if got, said := p.end(), p.stderr.String(); got != 0 || !strings.Contains(said, "(24 of them before this command), loss ") || !strings.Contains(said, ", 2 out-of-memory failures survived") {
		t.Errorf("run: exit status %d\n%s", got, said)
	}
	steps, err := runs.ReadMetrics(dir)
	if err != nil || len(steps) != 40 {
		t.Fatalf("%d steps, %v", len(steps), err)
	}
	for i, s := range steps {
		if s.Step != i+1 || s.First != int64(64*i) || s.Samples != 64 {
			t.Errorf("step %d: %+v", i+1, s)
		}
	}
}
