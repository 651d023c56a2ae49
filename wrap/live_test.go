package wrap

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestRankErrorsOfThisLife holds that a launcher's error files are looked for where the
// command has it log, and that those of earlier lives are left out.
func TestRankErrorsOfThisLife(t *testing.T) {
	dir := t.TempDir()
	begun := time.Now()
	for name, at := range map[string]time.Time{"earlier": begun.Add(-time.Minute), "this": begun.Add(time.Second)} {
		folder := filepath.Join(dir, "logs", name, "attempt_0", "1")
		if err := os.MkdirAll(folder, 0o755); err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(folder, "error.json")
		if err := os.WriteFile(file, []byte(`{"message": "torch.OutOfMemoryError: `+name+`"}`), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(file, at, at); err != nil {
			t.Fatal(err)
		}
	}
	w := &Wrapped{Trouble: func(err error) { t.Error(err) }}
	c := Command{Args: []string{"torchrun", "--log-dir", "logs", "--nproc-per-node", "2", "train.py"}, Dir: dir}
	if got := w.rankErrors(c, begun); len(got) != 1 || got[0].Rank != 1 || got[0].Message != "torch.OutOfMemoryError: this" {
		t.Errorf("%+v", got)
	}
	c.Args = []string{"torchrun", "train.py"}
	if got := w.rankErrors(c, begun); got != nil {
		t.Errorf("without a log folder: %+v", got)
	}
}
