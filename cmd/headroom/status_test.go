package main

import (
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// TestStatusShowsNoRawControls reads what another program, or a damaged disk,
// may have left.
func TestStatusShowsNoRawControls(t *testing.T) {
	inEmptyFolder(t, "endless.yaml", endless)
	for _, dir := range []string{"runs/a", "runs/b\x1b]0;title\a"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for name, text := range map[string]string{
			"run.yaml":    "",
			"status.json": `{"state": "done\u001b[31m", "reason": "two\nlines\u001b[2J\u009b", "updated": "0001-01-01T00:00:01Z"}`,
		} {
			if err := os.WriteFile(dir+"/"+name, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, args := range [][]string{{"status"}, {"status", "a"}} {
		out, err := exec.Command("headroom", args...).CombinedOutput()
		if err != nil || strings.ContainsAny(string(out), "\x1b\a\u009b") {
			t.Errorf("%q: %v, %q", args, err, out)
		}
		if !strings.Contains(string(out), `done\x1b[31m`) || !strings.Contains(string(out), "0001-01-01\n") {
			t.Errorf("%q:\n%s", args, out)
		}
	}
	out, err := exec.Command("headroom", "status", "a\x1b[31m").CombinedOutput()
	if err == nil || strings.Contains(string(out), "\x1b") {
		t.Errorf("an error: %v, %q", err, out)
	}
}

func TestAgo(t *testing.T) {
	now := time.Date(2030, 5, 6, 7, 8, 9, 0, time.UTC)
	for _, c := range []struct {
		t    time.Time
		want string
	}{
		{now.Add(-90 * time.Second), "1m ago"},
		{now.Add(time.Second), "0s ago"},
		{now.Add(time.Hour), "2030-05-06"},
		{now.Add(-200 * 24 * time.Hour), "200d ago"},
		{time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC), "9999-12-31"},
		{time.Date(1, 1, 1, 0, 0, 1, 0, time.UTC), "0001-01-01"},
	} {
		if got := ago(now, c.t); got != c.want {
			t.Errorf("%v: %q, want %q", c.t, got, c.want)
		}
	}
}
