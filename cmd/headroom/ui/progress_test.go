package ui

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"headroom/cmd/headroom/ui/uitest"
	"headroom/harness"
	"headroom/memory"
	"headroom/runs"
)

func aStep(n int) runs.StepReport {
	return runs.StepReport{Step: n, Samples: 80, Loss: 3.14159, Splits: []int{27, 27, 26}, Seconds: 0.5,
		Memory: memory.Stats{Peak: 3 * memory.GiB, Capacity: 4 * memory.GiB}}
}

func TestLiveLineFitsEveryWidth(t *testing.T) {
	p := Progress{Total: 2000, pace: 0.5, Failures: 2}
	const whole = "step 120/2000 · loss 3.142 · 15m 40s left · 160 samples/s · micro 27×3 · peak 3/4 GiB · 2 failures survived"
	last := -1
	for width := range 200 {
		got := fitted(p.parts(aStep(120)), width)
		if n := utf8.RuneCountInString(got); n > width {
			t.Fatalf("width %d: %d columns: %s", width, n, got)
		}
		said := len(strings.Split(strings.ReplaceAll(got, " · ", "  "), "  "))
		if said < last {
			t.Fatalf("width %d: %q says less than the narrower line", width, got)
		}
		last = said
		if width >= utf8.RuneCountInString(whole) && got != whole {
			t.Fatalf("width %d: %q, want all of it", width, got)
		}
	}
}

// TestLiveLineSaysAllOn80Columns checks that the line of a run fits in 80 columns without
// leaving anything out, even if its numbers are long.
func TestLiveLineSaysAllOn80Columns(t *testing.T) {
	small, large := aStep(120), aStep(12000)
	small.Splits = []int{16, 16}
	small.Memory = memory.Stats{Peak: 12*memory.MiB + 640*memory.KiB, Capacity: 15 * memory.MiB}
	large.Memory = memory.Stats{Peak: 126 * memory.GiB, Capacity: 140 * memory.GiB}
	for _, test := range []struct {
		p    Progress
		s    runs.StepReport
		want string
	}{
		{Progress{Total: 200, pace: 0.95, Failures: 2}, small,
			"step 120/200  loss 3.14  1m left  84.2 samples/s  16×2  12.6/15 MiB  2 OOM"},
		{Progress{Total: 20000, pace: 1, Failures: 12}, large,
			"step 12000/20000  loss 3.14  2.2h left  80 samples/s  27×3  126/140 GiB  12 OOM"},
	} {
		if got := fitted(test.p.parts(test.s), 79); got != test.want {
			t.Errorf("%s\nwant\n%s", got, test.want)
		}
	}
}

// TestBarTakesTheRoomThatIsLeft checks that the line gets a bar only if the whole line and the
// bar fit.
func TestBarTakesTheRoomThatIsLeft(t *testing.T) {
	const line = "step 120/200 · loss 3.142"
	for width := range 100 {
		got := barred(line, 120, 200, width)
		want := line
		if width >= 22+len("step 120/200 - loss 3.142") {
			want = "████████████░░░░░░░░  " + line
		}
		if got != want {
			t.Errorf("width %d: %s", width, got)
		}
	}
	for done, want := range map[int]string{0: "░░░░░░░░░░░░░░░░░░░░  s", 199: "███████████████████░  s", 200: "████████████████████  s", 300: "████████████████████  s"} {
		if got := barred("s", done, 200, 100); got != want {
			t.Errorf("%d of 200: %s", done, got)
		}
	}
	if got := barred("s", 1, 0, 100); got != "s" {
		t.Errorf("no end is known: %s", got)
	}
}

// TestPlainLinesGetRarer checks that without a terminal the progress lines get rarer in the
// course of a night.
func TestPlainLinesGetRarer(t *testing.T) {
	var out bytes.Buffer
	now := time.Unix(0, 0)
	u := &UI{Screen: &Screen{Writer: &out}, Now: func() time.Time { return now }}
	p := Progress{UI: u, Total: 8 * 3600, Started: now}
	for n := 1; n <= p.Total; n++ {
		now = now.Add(time.Second)
		p.Step(aStep(n))
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if !strings.HasPrefix(lines[0], "headroom: step 1/") || !strings.HasPrefix(lines[len(lines)-1], "headroom: step 28800/") {
		t.Errorf("first %q, last %q", lines[0], lines[len(lines)-1])
	}
	if len(lines) < 480 || len(lines) > 560 {
		t.Errorf("%d lines in 8 hours, want about one a minute", len(lines))
	}
	if strings.ContainsAny(out.String(), "\r\x1b") {
		t.Error("control characters without a terminal")
	}
}

func TestFolded(t *testing.T) {
	const text = "headroom:   micro-batch 48 → 24: 31 fits in 24 MiB"
	for width, want := range map[int]string{
		80: text,
		50: text,
		49: "headroom:   micro-batch 48 → 24: 31 fits in\n          24 MiB",
		24: "headroom:   micro-batch\n          48 → 24: 31\n          fits in 24 MiB",
		1:  "headroom:  \n          micro-batch\n          48 → 24:\n          31\n          fits\n          in\n          24 MiB",
	} {
		if got := folded(text, width, 10); got != want {
			t.Errorf("width %d:\n%s\nwant\n%s", width, got, want)
		}
	}
}

func TestScreenLeavesNoGarbage(t *testing.T) {
	var out bytes.Buffer
	s := &Screen{Writer: &out, Live: true}
	s.Show("step 1/10 · loss 12.34")
	s.print(Plain, "short")
	s.Show("step 2/10")
	s.print(Plain, "something longer than the line")
	s.Show("")
	s.print(Plain, "done")
	got := strings.Join(uitest.Terminal(out.String()), "|")
	if want := "short|something longer than the line|done|"; got != want {
		t.Errorf("the terminal shows %q, want %q", got, want)
	}
}

// TestOwnLinesBeginALine checks that a message of headroom's after a command's progress bar
// begins on a line of its own.
func TestOwnLinesBeginALine(t *testing.T) {
	var out bytes.Buffer
	open := true
	s := &Screen{Writer: &out, Breaks: func() bool { defer func() { open = false }(); return open }}
	out.WriteString("step 10%")
	s.print(Plain, "one")
	s.print(Plain, "two")
	if got := out.String(); got != "step 10%\none\ntwo\n" {
		t.Errorf("%q", got)
	}
}

// TestMarks checks that without colours the lines about problems, remedies and other things can be
// told apart, even if they are folded.
func TestMarks(t *testing.T) {
	var out strings.Builder
	u := &UI{Screen: &Screen{Writer: &out, Live: true, Width: func() int { return 30 }}, Now: time.Now}
	for _, e := range []runs.Entry{
		{Kind: runs.KindOOM, Text: "out of memory at micro-batch 4"},
		{Kind: runs.KindDecision, Text: "micro-batch 4 → 2"},
		{Kind: runs.KindRemedy, Text: "cache emptied"},
		{Kind: runs.KindRefused, Text: "left as it is"},
		{Kind: runs.KindSearch, Text: "the largest is 4"},
		{Kind: runs.KindWarning, Text: "disk is full"},
	} {
		u.Entry(e)
	}
	u.Failed(errors.New("gave up"))
	u.Finished(harness.Result{})
	want := `headroom: ! out of memory at
            micro-batch 4
headroom: > micro-batch 4 → 2
headroom: > cache emptied
headroom: ! left as it is
headroom: the largest is 4
headroom: warning: disk is
          full
headroom: ! gave up
headroom: done: 0 steps, loss
          0.000
`
	if out.String() != want {
		t.Errorf("%s", out.String())
	}
}

// TestASizeThatIsTriedAgainIsOneLine checks that a search shows each answer once, and that the
// next search shows all of its answers again.
func TestASizeThatIsTriedAgainIsOneLine(t *testing.T) {
	var out strings.Builder
	u := &UI{Screen: &Screen{Writer: &out}, Now: time.Now}
	for _, e := range []runs.Entry{
		{Kind: runs.KindProbe, Text: "micro-batch 4 fits: peak 3 GiB"},
		{Kind: runs.KindProbe, Text: "micro-batch 4 fits: peak 3 GiB"},
		{Kind: runs.KindProbe, Text: "micro-batch 4 fits: peak 3.1 GiB"},
		{Kind: runs.KindProbe, Text: "micro-batch 4 fits: peak 3 GiB"},
		{Kind: runs.KindSearch, Text: "the largest is 4"},
		{Kind: runs.KindProbe, Text: "micro-batch 4 fits: peak 3.1 GiB"},
	} {
		u.Entry(e)
	}
	want := "headroom:   micro-batch 4 fits: peak 3 GiB\nheadroom:   micro-batch 4 fits: peak 3.1 GiB\nheadroom: the largest is 4\nheadroom:   micro-batch 4 fits: peak 3.1 GiB\n"
	if out.String() != want {
		t.Errorf("%s", out.String())
	}
}
