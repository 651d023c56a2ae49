package wraptest

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"headroom/wrap/command"
)

// about formats warnings as lines "about: text", and advice as "about, advice: text".
func about(all []command.Warning) string {
	var b strings.Builder
	for _, w := range all {
		advice := ""
		if w.Advice {
			advice = ", advice"
		}
		fmt.Fprintf(&b, "%s%s: %s\n", w.About, advice, w.Text)
	}
	return b.String()
}

// Warned checks that got has one warning per entry of want, and that each begins with the
// corresponding entry.
func Warned(t *testing.T, what string, got []command.Warning, want ...string) {
	t.Helper()
	lines := strings.Split(strings.TrimSuffix(about(got), "\n"), "\n")
	if len(got) == 0 {
		lines = nil
	}
	if !slices.EqualFunc(lines, want, strings.HasPrefix) {
		t.Errorf("%s: got\n%s\nwant\n%s", what, strings.Join(lines, "\n"), strings.Join(want, "\n"))
	}
}
