package report

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"headroom/memory"
	"headroom/report/chart"
	"headroom/runs"
)

func html(t *testing.T, r *Report) string {
	t.Helper()
	var b bytes.Buffer
	if err := r.HTML(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func markdown(t *testing.T, r *Report, path func(chart.Picture) string) string {
	t.Helper()
	var b bytes.Buffer
	if err := r.Markdown(&b, path); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func svg(t *testing.T, p chart.Picture) string {
	t.Helper()
	var b bytes.Buffer
	if err := p.SVG(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// elements parses text and counts its elements. If strict is false, text may be HTML.
func elements(t *testing.T, text string, strict bool) map[string]int {
	t.Helper()
	d := xml.NewDecoder(strings.NewReader(text))
	if d.Strict = strict; !strict {
		d.AutoClose, d.Entity = xml.HTMLAutoClose, xml.HTMLEntity
	}
	found := map[string]int{}
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return found
		}
		if err != nil {
			t.Fatalf("not well formed: %v", err)
		}
		if start, ok := token.(xml.StartElement); ok {
			found[start.Name.Local]++
		}
	}
}

// oddRuns returns runs that are short, empty or broken.
func oddRuns() map[string]*diary {
	one := newDiary("one step", 1)
	one.plan.Micro = 16
	one.begin()
	one.walk(1, 0)
	failures := newDiary("failures only", 10)
	failures.begin()
	for range 3 {
		failures.oom(0, memory.Batch, "too large")
	}
	bare := newDiary("bare entries", 10)
	for _, k := range []runs.Kind{runs.KindProbe, runs.KindRemedy, runs.KindSearch, runs.KindDecision, runs.KindOOM, runs.KindPlan,
		runs.KindDecision, runs.KindFailed, runs.KindOOM, "a kind of tomorrow"} {
		bare.entry(runs.Entry{Kind: k})
	}
	bare.Steps = make([]runs.StepReport, 3)
	numbers := newDiary("no numbers", 30)
	numbers.plan.Micro = 16
	numbers.begin()
	numbers.walk(30, 0)
	for i := range numbers.Steps {
		switch i % 3 {
		case 0:
			numbers.Steps[i].Loss, numbers.Steps[i].Seconds = math.NaN(), 0
		case 1:
			numbers.Steps[i].Loss, numbers.Steps[i].LR = math.Inf(1), math.Inf(-1)
		}
	}
	return map[string]*diary{"nothing": newDiary("nothing", 0), "one step": one, "failures only": failures, "bare entries": bare, "no numbers": numbers, "night": night()}
}

func TestEveryRunHasAPage(t *testing.T) {
	for name, d := range oddRuns() {
		t.Run(name, func(t *testing.T) {
			r := New(d.Input)
			found := elements(t, html(t, r), false)
			if found["h1"] != 1 || found["svg"] != len(r.draw())+1 || found["svg"] < 5 || found["dt"] != 6 {
				t.Errorf("found %v", found)
			}
			for _, p := range r.draw() {
				found := elements(t, svg(t, p), true)
				if found["svg"] != 1 || found["desc"] != 1 || found["text"] < 2 || p.Alt == "" {
					t.Errorf("picture %s: %v, %q", p.Name, found, p.Alt)
				}
				if strings.Contains(svg(t, p), "NaN") || strings.Contains(svg(t, p), "Inf") {
					t.Errorf("picture %s has a place that is no number", p.Name)
				}
			}
			if text := markdown(t, r, nil); !strings.HasPrefix(text, "# "+d.Name) {
				t.Errorf("Markdown begins %.40q", text)
			}
		})
	}
}

func TestPageLoadsNothing(t *testing.T) {
	page := html(t, New(night().Input))
	for _, forbidden := range []string{"http:", "https:", "<script", "src=", "@import", "url(", "<iframe", "FE01"} {
		if strings.Contains(page, forbidden) {
			t.Errorf("the page contains %s", forbidden)
		}
	}
}

func TestPicturesMarkFailures(t *testing.T) {
	for _, p := range New(night().Input).draw() {
		text := svg(t, p)
		if n := strings.Count(text, `<g class="mark">`); n != 2 {
			t.Errorf("picture %s has %d marks, want 2: four failures in two places", p.Name, n)
		}
		if !strings.Contains(text, "<title>3. step 81: foreign: 4 GiB asked for at micro-batch 22 in forward, 700 MiB free") || !strings.Contains(text, "failed: batch") {
			t.Errorf("picture %s does not say what failed", p.Name)
		}
	}
}

// TestPicturesShowValues checks that pointing at a picture shows the step and each line's value there.
func TestPicturesShowValues(t *testing.T) {
	r := New(night().Input)
	for _, p := range r.draw() {
		for i, name := range map[string][]string{
			"memory":     {"peak allocated: 12", "peak reserved: 12", "available to this run: 15 GiB", "capacity: 24 GiB"},
			"throughput": {"each step: 4", "median of 5 steps: 4"}, "loss": {"each step: "},
		}[p.Name] {
			strip := regexp.MustCompile(`<title>step (9\d|1[01]\d)&#xA;[^<]*` + regexp.QuoteMeta(name)).FindString(svg(t, p))
			if strip == "" {
				t.Errorf("picture %s does not show value %d, %q, near step 100", p.Name, i, name)
			}
		}
	}
}

// TestNothingIsInjected checks that everything in a journal is treated as plain text,
// whatever it looks like.
func TestNothingIsInjected(t *testing.T) {
	const evil = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>|`*[x](javascript:1)\n# h\x00\x1b]]>"
	d := night()
	d.Name, d.Device, d.Problems = evil, evil, []string{evil}
	for i := range d.Entries {
		e := &d.Entries[i]
		e.Text = evil
		if e.Verdict != nil {
			e.Verdict = &memory.Verdict{Cause: evil, Why: evil}
		}
		if e.Decision != nil {
			decision := *e.Decision
			decision.Reason, decision.Hint, decision.Remedy, decision.Verdict = evil, evil, evil, e.Verdict
			e.Decision = &decision
		}
	}
	r := New(d.Input)
	honest := elements(t, html(t, New(night().Input)), false)
	found := elements(t, html(t, r), false)
	if found["script"]+found["img"] > 0 || found["svg"] != honest["svg"] {
		t.Errorf("elements were injected: %v", found)
	}
	for _, p := range r.draw() {
		if found := elements(t, svg(t, p), true); found["script"]+found["img"] > 0 {
			t.Errorf("elements were injected into picture %s: %v", p.Name, found)
		}
	}
	text := markdown(t, r, nil)
	if regexp.MustCompile(`[^\\]<script|[^\\]\]\(|\n# h|\x00|\x1b`).MatchString(text) {
		t.Errorf("markup was injected into the Markdown:\n%s", text)
	}
	columns(t, text)
}

// columns checks that every row of a Markdown table has as many cells as the
// row above it.
func columns(t *testing.T, text string) {
	t.Helper()
	previous := 0
	for _, line := range strings.Split(text, "\n") {
		cells := strings.Count(strings.ReplaceAll(line, `\|`, ""), "|")
		if !strings.HasPrefix(line, "|") {
			cells = 0
		}
		if cells > 0 && previous > 0 && cells != previous {
			t.Errorf("%d cells below %d: %s", cells, previous, line)
		}
		previous = cells
	}
}

func TestMarkdown(t *testing.T) {
	text := markdown(t, New(night().Input), func(p chart.Picture) string { return "at/" + p.Name + ".svg" })
	for _, want := range []string{
		"# gpt-owt: finished: 200 of 200 steps\n", "**kept: 64 samples in every step** | 200 steps × 64 = 12,800 samples",
		"](<at/memory.svg>)", "](<at/loss.svg>)", "| 22 × 3 → 13 × 5 | 600 ms |", "- micro-batch 22 would have fitted from the start",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is missing in\n%s", want, text)
		}
	}
	columns(t, text)
	if strings.Contains(markdown(t, New(night().Input), nil), "![") {
		t.Error("pictures without a place for them")
	}
}

// TestLongRunHasASmallPage checks that a long run has a page of the usual size, and that
// the pictures still show its extremes.
func TestLongRunHasASmallPage(t *testing.T) {
	n := 1_000_000
	if testing.Short() {
		n = 50_000
	}
	d := newDiary("long", n)
	d.plan.Micro = 22
	d.begin()
	d.finish(0)
	first := d.Steps[0]
	d.Steps = make([]runs.StepReport, n)
	for i := range d.Steps {
		d.Steps[i] = first
		d.Steps[i].Step, d.Steps[i].First = i+1, int64(i)*effective
		d.Steps[i].Loss = 2 + math.Sin(float64(i))
	}
	d.step = n
	d.entry(runs.Entry{Kind: runs.KindDone})
	r := New(d.Input)
	if r.Accounting.State != Held || r.Accounting.Samples != int64(n)*effective {
		t.Errorf("accounting %+v", r.Accounting)
	}
	if page := html(t, r); len(page) > 150<<10 {
		t.Errorf("a page of %d bytes", len(page))
	}
}

func TestWrite(t *testing.T) {
	dir := t.TempDir()
	r := New(night().Input)
	for range 2 { // the second report replaces the first
		if err := r.Write(dir); err != nil {
			t.Fatal(err)
		}
	}
	held, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range held {
		names = append(names, e.Name())
	}
	want := "report-learning-rate.svg report-loss.svg report-memory.svg report-micro-batch.svg report-throughput.svg report.html report.md"
	if got := strings.Join(names, " "); got != want {
		t.Errorf("got %s", got)
	}
	page, err := os.ReadFile(filepath.Join(dir, "report.html"))
	if err != nil || string(page) != html(t, r) {
		t.Errorf("the page on disk is another one: %v", err)
	}
	if err := r.Write(filepath.Join(dir, "missing")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v", err)
	}
}

func TestWriteLeavesNothingBehind(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "report.html"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := New(night().Input).Write(dir); err == nil || !strings.Contains(err.Error(), "report.html") {
		t.Errorf("a folder was replaced by a file: %v", err)
	}
	left, err := filepath.Glob(filepath.Join(dir, ".*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v %v", left, err)
	}
}

func TestRead(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "gpt")
	write := func(name, text string) {
		t.Helper()
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("journal.jsonl", `{"kind":"attempt","attempt":1,"step":0,"plan":{"effective":64,"world":1,"micro":22}}`+"\n"+`{"kind":"do`)
	write("metrics.jsonl", `{"step":1,"samples":64}`+"\ngarbage\n"+`{"step":2,"first":64,"samples":64}`+"\n")
	write("status.json", `{"state":"running","steps":9}`)
	in, err := Read(dir)
	if err != nil || in.Name != "gpt" || len(in.Entries) != 1 || len(in.Steps) != 2 || in.Planned != 9 || in.Running || len(in.Problems) != 2 {
		t.Fatalf("got %+v, %v", in, err)
	}
	if r := New(in); r.Outcome.State != CutOff || !strings.Contains(html(t, r), "metrics.jsonl") {
		t.Errorf("outcome %+v", r.Outcome)
	}
}

// TestManyAttemptsAreFolded checks that a long list of attempts is folded, so that it
// does not push the rest of the page away.
func TestManyAttemptsAreFolded(t *testing.T) {
	for attempts, folded := range map[int]bool{8: false, 9: true} {
		d := newDiary("often", 10)
		for range attempts {
			d.begin()
		}
		page := html(t, New(d.Input))
		if found := elements(t, page, false); found["details"] > 0 != folded || found["summary"] > 0 != folded {
			t.Errorf("%d attempts: %d folds", attempts, found["details"])
		}
		if folded && !strings.Contains(page, "9 attempts, the last one from 2 Mar 2026 22:14:05: end not recorded") {
			t.Error("the fold says nothing")
		}
	}
}

// TestSaysWhatRan checks that a report says what was trained, and which version of headroom drew it.
func TestSaysWhatRan(t *testing.T) {
	in := night().Input
	in.Trained, in.Version = "gpt: 12 layers of width 768", "1.2.3 (commit abcdef0)"
	r := New(in)
	if page := html(t, r); !strings.Contains(page, "gpt: 12 layers of width 768") || !strings.Contains(page, "Drawn by headroom 1.2.3 (commit abcdef0) from") {
		t.Error("the page does not say so")
	}
	if text := markdown(t, r, nil); !strings.Contains(text, "Trained: gpt: 12 layers of width 768") {
		t.Errorf("%.300s", text)
	}
}
