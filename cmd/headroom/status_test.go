package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"headroom/cmd/headroom/ui"
	"headroom/memory"
	"headroom/runs"
)

// TestStatusShowsNoRawControls checks that headroom status prints no raw control characters,
// even if the names or the files of runs contain some. Another program or a damaged disk may
// have put them there.
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

// TestStatusOfACommand checks that a command's steps are shown as its worker saw them, in the
// attempt that they belong to, and that its speed is shown only while it works.
func TestStatusOfACommand(t *testing.T) {
	const when = 40 * time.Second
	now := time.Date(2030, 5, 6, 7, 8, 9, 0, time.UTC)
	seen := runs.ProcessStep{Time: now.Add(-when), Attempt: 2, PID: 7, Made: 130, Seconds: 0.2512,
		Memory: memory.Stats{Capacity: 24 * memory.GiB, Peak: 6 * memory.GiB}}
	older := seen
	older.Attempt, older.Made = 1, 900
	for _, c := range []struct {
		name   string
		status runs.Status
		steps  []runs.ProcessStep
		want   string
	}{
		{"works", runs.Status{State: runs.StateRunning}, []runs.ProcessStep{older, seen}, "works running 130 0.25 s/step - - 6/24 GiB 0 40s ago"},
		{"went-on", runs.Status{State: runs.StateRunning, Step: 400, From: 400, Every: 15}, []runs.ProcessStep{seen}, "went-on running 400+130 0.25 s/step - - 6/24 GiB 0 40s ago"},
		{"between", runs.Status{State: runs.StateRunning, Step: 500, From: 400, Updated: now}, []runs.ProcessStep{seen}, "between running 400+130 0.25 s/step - - 6/24 GiB 0 0s ago"},
		{"begins", runs.Status{State: runs.StateRunning}, []runs.ProcessStep{older}, "begins running - - - - - 0 1.0h ago"},
		{"alone", runs.Status{State: runs.StateRunning}, nil, "alone running - - - - - 0 1.0h ago"},
		{"done", runs.Status{State: runs.StateDone}, []runs.ProcessStep{seen}, "done done 130 - - - 6/24 GiB 0 40s ago"},
		{"saved", runs.Status{State: runs.StateDone, Step: 100}, []runs.ProcessStep{seen}, "saved done 130 - - - 6/24 GiB 0 40s ago"},
		{"resumed", runs.Status{State: runs.StateDone, Step: 500, From: 400}, []runs.ProcessStep{seen}, "resumed done 400+130 - - - 6/24 GiB 0 40s ago"},
		{"unseen", runs.Status{State: runs.StateDone, Step: 500, From: 400}, []runs.ProcessStep{older}, "unseen done checkpoint 500 - - - - 0 1.0h ago"},
		{"ours", runs.Status{State: runs.StateRunning, Step: 3, Steps: 9, SamplesPerSecond: 812.3, Loss: 1.5}, nil, "ours running 3/9 812 samples/s 1.500 - - 0 1.0h ago"},
	} {
		folder, err := runs.Open(filepath.Join(t.TempDir(), c.name))
		if err != nil {
			t.Fatal(err)
		}
		c.status.Attempt = 2
		if c.status.Updated.IsZero() {
			c.status.Updated = now.Add(-time.Hour)
		}
		if err := folder.SetStatus(c.status); err != nil {
			t.Fatal(err)
		}
		for _, s := range c.steps {
			if err := folder.AddProcessStep(s); err != nil {
				t.Fatal(err)
			}
		}
		at, err := standingOf(folder.Dir())
		if err != nil {
			t.Fatal(err)
		}
		out, err := os.Create(filepath.Join(t.TempDir(), "out"))
		if err != nil {
			t.Fatal(err)
		}
		u := ui.New(out, out, func(string) (string, bool) { return "", false })
		u.Now = func() time.Time { return now }
		if err := printStandings(u, []standing{at}); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(out.Name())
		_, row, _ := strings.Cut(string(text), "\n")
		if got := strings.Join(strings.Fields(row), " "); err != nil || got != c.want {
			t.Errorf("%v\n%s\nwant %s", err, text, c.want)
		}
		if err := errors.Join(out.Close(), folder.Close()); err != nil {
			t.Error(err)
		}
	}
}
