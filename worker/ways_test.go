package worker

import (
	"strings"
	"testing"

	"headroom/runs"
)

// TestNamesAreTheSame checks that Go and the Python package use the same names for the ways in
// which a failure is survived.
func TestNamesAreTheSame(t *testing.T) {
	text, err := files.ReadFile("python/headroom_train/failure.py")
	if err != nil {
		t.Fatal(err)
	}
	for _, way := range []runs.Way{runs.WayPieces, runs.WayTwoPass, runs.WayCall, runs.WayHost, runs.WaySpill, runs.WayBatch, runs.WayStep} {
		if !strings.Contains(string(text), `"`+string(way)+`": `) {
			t.Errorf("failure.py has no %s", way)
		}
	}
}
