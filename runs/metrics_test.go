package runs

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestNewestProcessStep checks that the newest step is found in files that are
// long, still being written or damaged, and that none is found in an empty file
// or among steps of another kind.
func TestNewestProcessStep(t *testing.T) {
	line := func(made int) string { return fmt.Sprintf(`{"attempt":1,"pid":7,"made":%d,"seconds":0.5}`+"\n", made) }
	for _, c := range []struct {
		text string
		want int // steps made; 0 if no step is found
	}{
		{"", 0},
		{line(1), 1},
		{line(1) + line(2), 2},
		{strings.Repeat(line(3), 5000) + line(4), 4},
		{line(5) + strings.TrimSuffix(line(6), "\n"), 5},
		{line(7) + "damaged\n", 7},
		{`{"step":8,"samples":4,"loss":1.5}` + "\n", 0},
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "metrics.jsonl"), []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		got := NewestProcessStep(dir)
		if got == nil && c.want == 0 || got != nil && got.Made == c.want && got.Seconds == 0.5 {
			continue
		}
		t.Errorf("%.80q: %+v, want %d", c.text, got, c.want)
	}
	if got := NewestProcessStep(t.TempDir()); got != nil {
		t.Errorf("of no file: %+v", got)
	}
}
