package checkpoints

import (
	"path"
	"testing"

	"pgregory.net/rapid"
)

func TestPatternsMeet(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want bool
	}{
		{"*.json", "*.json", true},
		{"*.json", "B-*.json", true},
		{"A-*.json", "B-*.json", false},
		{"step-*", "*-[0-9]", true},
		{"step-[0-4]", "step-[5-9]", false},
		{"step-[0-4]", "step-[^0-3]", true},
		{"*.pt", "*.json", false},
		{"*a*b*", "*b*a*", true},
		{"a?c", "a*", true},
		{"a?c", "ac", false},
		{"last.pt", "last.pt", true},
		{"last.pt", "best.pt", false},
		{"step-*", "step-*/model.json", true}, // a file in the other's checkpoint
		{"out/*", "*/x", true},
		{"out/*", "runs/x", false},
		{`a\*`, "ab", false},
		{`a\*`, `a[*]`, true},
	} {
		if patternsMeet(c.a, c.b) != c.want || patternsMeet(c.b, c.a) != c.want {
			t.Errorf("%s and %s: want %v", c.a, c.b, c.want)
		}
	}
}

// TestPatternsThatMatchMeet checks that patterns meet if there is a name that both match.
func TestPatternsThatMatchMeet(t *testing.T) {
	met := 0
	rapid.Check(t, func(t *rapid.T) {
		pattern := rapid.StringMatching(`([ab*?]|\[\^?[ab]-?[bc]\]){0,6}`)
		a, b := pattern.Draw(t, "a"), pattern.Draw(t, "b")
		for _, name := range rapid.SliceOfN(rapid.StringMatching(`[abcd]{0,6}`), 20, 20).Draw(t, "names") {
			inA, errA := path.Match(a, name)
			inB, errB := path.Match(b, name)
			if errA == nil && errB == nil && inA && inB {
				if met++; !patternsMeet(a, b) {
					t.Fatalf("%q matches %s and %s", name, a, b)
				}
			}
		}
	})
	if met == 0 {
		t.Error("no name has matched two patterns")
	}
}
