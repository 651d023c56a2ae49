package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"headroom/memory"
	"headroom/runs"
	"headroom/worker"
	"headroom/wrap/command"
)

// TestGrownAndRead checks that what a run has found and what is read in the script are said once if they
// are the same, that only runs of this command in this folder count, the newest that found anything, and
// that nothing is said of a line that may have been changed since.
func TestGrownAndRead(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	t.Setenv("HEADROOM_RUNS_DIR", "headroom-runs")
	began := time.Now()
	written := began.Add(-time.Hour)
	if err := os.WriteFile("train.py", nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes("train.py", written, written); err != nil {
		t.Fatal(err)
	}
	run := func(name, in string, at time.Time, holder *memory.Holder, words ...string) {
		t.Helper()
		folder := filepath.Join("headroom-runs", name)
		entry, err := json.Marshal(runs.Entry{Time: at, Kind: runs.KindWarning, Holder: holder})
		if err == nil {
			err = os.MkdirAll(folder, 0o755)
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(folder, "run.yaml"), fmt.Appendf(nil, "command: [%s]\ndir: %s\n", strings.Join(words, ", "), in), 0o644)
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(folder, "journal.jsonl"), append(entry, '\n'), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	line := command.Line{Args: []string{"python", "train.py"}, Dir: dir}
	seen := memory.Holder{Kind: "collected", Name: "seen", Kept: filepath.Join(dir, "train.py:7"), Tensors: 49, Bytes: memory.GiB, Rate: 1, PerStep: memory.MiB, Cure: "empty `seen`"}
	other := seen
	other.Name = "other"
	run("elsewhere", "/", began, &other, line.Args...)
	run("another", dir, began, &other, "python", "train.py", "--fast")
	run("nothing", dir, began, nil, line.Args...)
	run("before-the-edit", dir, written.Add(-time.Minute), &other, line.Args...)
	if got := lastGrown(line); got != nil {
		t.Fatalf("%+v", got)
	}
	run("older", dir, began.Add(-time.Minute), &other, line.Args...)
	run("this", dir, began, &seen, line.Args...)

	read := worker.Finding{Rule: "kept-tensor", File: "train.py", Line: 7, Name: "seen", Why: "seen keeps y", Instead: "seen.append(y.detach())"}
	elsewhere := worker.Finding{Rule: "no-zero-grad", File: "train.py", Line: 3, Why: "no zero_grad", Instead: "opt.zero_grad()"}
	facts := seen.Facts()
	for name, c := range map[string]struct {
		found []worker.Finding
		want  string
	}{
		"one and the same": {[]worker.Finding{elsewhere, read}, "read in the script:\n  train.py:3: no zero_grad\n    instead: opt.zero_grad()\n  train.py:7: seen keeps y\n    in the run this: " + facts + "\n    instead: seen.append(y.detach())\n"},
		"two":              {[]worker.Finding{elsewhere}, "read in the script:\n  train.py:3: no zero_grad\n    instead: opt.zero_grad()\nfound in the run this:\n  " + facts + "; empty `seen`\n"},
		"only in the run":  {nil, "found in the run this:\n  " + facts + "; empty `seen`\n"},
	} {
		var b strings.Builder
		findings(&b, c.found, lastGrown(line), dir)
		if b.String() != c.want {
			t.Errorf("%s:\n%s\nwant\n%s", name, b.String(), c.want)
		}
	}
}
