package worker

import (
	"strings"
	"testing"

	"headroom/runs"
)

// TestAllowanceHasOneName checks that Go and the Python package use the same name for the
// allowance, and the same words to begin its note in the journal.
func TestAllowanceHasOneName(t *testing.T) {
	text, err := files.ReadFile("python/headroom_train/norms.py")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`ALLOWANCE = "` + Allowances[0] + `"`, `NOTE = "` + runs.Approximate + ": "} {
		if len(Allowances) != 1 || !strings.Contains(string(text), want) {
			t.Errorf("norms.py has no %s", want)
		}
	}
}
