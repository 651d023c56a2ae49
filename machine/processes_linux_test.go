package machine

import (
	"testing"
)

// TestParseStat checks that a line is parsed correctly even if the name in it looks like
// the rest of the line, and that lines that are cut short are rejected.
func TestParseStat(t *testing.T) {
	for text, want := range map[string]Process{
		"7 (sh) S 3 7 7 0":         {PID: 7, Parent: 3, Group: 7, Name: "sh"},
		"7 (a b) c) Z 3 7":         {PID: 7, Parent: 3, Group: 7, Name: "a b) c", Dead: true},
		"7 ((x) S 1 (x)) R 12 4 4": {PID: 7, Parent: 12, Group: 4, Name: "(x) S 1 (x)"},
		"7 (sh) S 3 8 9 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 1 0 98765 11": {PID: 7, Parent: 3, Group: 8, Name: "sh", Start: 98765},
	} {
		got, ok := parseStat(7, []byte(text))
		if !ok || got != want {
			t.Errorf("%s: %+v, %v", text, got, ok)
		}
	}
	for _, text := range []string{"", "7 (sh)", "7 (sh) S", "7 (sh) S x"} {
		if got, ok := parseStat(7, []byte(text)); ok {
			t.Errorf("%q: %+v", text, got)
		}
	}
}
