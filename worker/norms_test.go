package worker

import (
	"strings"
	"testing"

	"headroom/runs"
)

// TestNamesAreTheSame checks that Go and the Python package use the same names for the
// allowance and for the ways in which a failure is survived.
func TestNamesAreTheSame(t *testing.T) {
	for file, names := range map[string][]string{
		"norms.py":  {`ALLOWANCE = "` + Allowances[0] + `"`},
		"report.py": {string(runs.WayPieces), string(runs.WayCall), string(runs.WayHost), string(runs.WayBatch), string(runs.WayStep)},
	} {
		text, err := files.ReadFile("python/headroom_train/" + file)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			if file == "report.py" {
				name = `"` + name + `": `
			}
			if len(Allowances) != 1 || !strings.Contains(string(text), name) {
				t.Errorf("%s has no %s", file, name)
			}
		}
	}
}
