package ui

import (
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// TestMessageIsShort checks that a message is the newest whole lines, as many as Kubernetes keeps, and of a single line that is
// too large the end; and that lines are not folded for it.
func TestMessageIsShort(t *testing.T) {
	u := &UI{Screen: &Screen{Writer: io.Discard, Live: true, Width: func() int { return 40 }}, Message: filepath.Join(t.TempDir(), "message")}
	message := func() string {
		u.LeaveMessage(nil)
		text, err := os.ReadFile(u.Message)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(u.Message); err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	for n := range 100 {
		u.Say("%d %s", n, strings.Repeat("all ", 49))
	}
	lines := strings.Split(strings.TrimSuffix(message(), "\n"), "\n")
	for i, line := range lines {
		if number, _, _ := strings.Cut(line, " "); number != strconv.Itoa(100-len(lines)+i) || len(line) != 199 {
			t.Errorf("line %d of %d: %s", i, len(lines), line)
		}
	}
	if len(lines) != messageMost/200 {
		t.Errorf("%d lines", len(lines))
	}
	u.Say("%s", strings.Repeat("x", 2*messageMost)+"end")
	if got := message(); len(got) != messageMost || !strings.HasSuffix(got, "xend\n") {
		t.Errorf("%d bytes: …%s", len(got), got[max(0, len(got)-20):])
	}
}
