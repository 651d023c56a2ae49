package runs

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestOutputIsBounded writes many more lines than fit, and checks that the first and
// the newest lines are kept, whole, in at most three files.
func TestOutputIsBounded(t *testing.T) {
	f, err := Open(filepath.Join(t.TempDir(), "run"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}()
	const lines = 1000
	for n := range lines {
		o, err := f.Output(1) // opened again: it continues where it was
		if err != nil {
			t.Fatal(err)
		}
		o.part = 100
		_, err = fmt.Fprintf(o, "line %04d\n", n)
		if err != nil || o.Close() != nil {
			t.Fatal(err)
		}
	}
	read := func(name string) []string {
		text, err := os.ReadFile(f.path("logs", name))
		if err != nil {
			t.Fatal(err)
		}
		if len(text) > 100 {
			t.Errorf("%s has %d bytes", name, len(text))
		}
		return strings.Split(strings.TrimSpace(string(text)), "\n")
	}
	first, newest := read("output-001.first.log"), append(read("output-001.previous.log"), read("output-001.log")...)
	for i, line := range first {
		if line != fmt.Sprintf("line %04d", i) {
			t.Errorf("the beginning: %q at %d", line, i)
		}
	}
	for i, line := range newest {
		if line != fmt.Sprintf("line %04d", lines-len(newest)+i) {
			t.Errorf("the end: %q at %d", line, i)
		}
	}
	if len(first) != 10 || len(newest) < 10 {
		t.Errorf("%d and %d lines are kept", len(first), len(newest))
	}
	if all, err := filepath.Glob(f.path("logs", "output-*")); err != nil || len(all) != 3 {
		t.Errorf("%q, %v", all, err)
	}
}
