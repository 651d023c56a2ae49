// Package wraptest has what the tests of several packages below wrap need.
package wraptest

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"headroom/wrap/command"
)

// The commands in tests begin at the time Start. All of them have ended at the time Now.
var (
	Start = time.Date(2026, 3, 1, 22, 0, 0, 0, time.UTC)
	Now   = Start.Add(8 * time.Hour)
)

// Typed returns the command that a shell would run if line were typed in the folder
// /work. It understands only single quotes.
func Typed(line string) command.Line {
	var args []string
	for i, part := range strings.Split(line, "'") {
		if i%2 == 1 {
			args[len(args)-1] += part
			continue
		}
		fields := strings.Fields(part)
		if i > 0 && part != "" && part[0] != ' ' && len(fields) > 0 {
			args[len(args)-1] += fields[0]
			fields = fields[1:]
		}
		args = append(args, fields...)
		if strings.HasSuffix(part, " ") {
			args = append(args, "")
		}
	}
	var kept []string
	for _, arg := range args {
		if arg != "" {
			kept = append(kept, arg)
		}
	}
	return command.Line{Args: kept, Dir: "/work"}
}

// Unblocked fails the test if f has not returned after a while, which it does unless it is
// blocked.
func Unblocked(t *testing.T, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() { defer close(done); f() }()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Fatalf("%s: blocked", what)
	}
}

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
