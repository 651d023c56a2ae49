package report

import (
	"bytes"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
)

// served returns a live page of d. The page's stamp is always the current value of
// *stamp.
func served(d *diary, stamp *string) *Live {
	return &Live{Token: "secret", Draw: func() (*Report, error) { return New(d.Input), nil }, Stamp: func() string { return *stamp }}
}

func ask(h http.Handler, method, url string, header map[string]string) (status int, body string, tag string) {
	q := httptest.NewRequest(method, url, nil)
	for name, value := range header {
		q.Header.Set(name, value)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, q)
	return w.Code, w.Body.String(), w.Header().Get("ETag")
}

// TestLiveIsPrivate checks that the page is read-only, and that it answers only requests
// that have its token and address this machine by a loopback name.
func TestLiveIsPrivate(t *testing.T) {
	stamp := ""
	live := served(night(), &stamp)
	for _, c := range []struct {
		method, url string
		want        int
	}{
		{"GET", "http://127.0.0.1:8000/?token=secret", 200},
		{"HEAD", "http://localhost:8000/?token=secret", 200},
		{"GET", "http://[::1]:8000/?token=secret", 200},
		{"GET", "http://127.0.0.1:8000/", 403},
		{"GET", "http://127.0.0.1:8000/?token=", 403},
		{"GET", "http://127.0.0.1:8000/?token=secrex", 403},
		{"GET", "http://127.0.0.1:8000/?token=secretsecret", 403},
		{"GET", "http://evil.example:8000/?token=secret", 403},
		{"GET", "http://127.0.0.1.evil.example/?token=secret", 403},
		{"GET", "http://10.0.0.7:8000/?token=secret", 403},
		{"GET", "http://127.0.0.1:8000/journal.jsonl?token=secret", 404},
		{"GET", "http://127.0.0.1:8000/journal.jsonl", 403},
		{"POST", "http://127.0.0.1:8000/?token=secret", 405},
	} {
		status, body, _ := ask(live, c.method, c.url, nil)
		if status != c.want || status != 200 && strings.Contains(body, "night") {
			t.Errorf("%s %s: %d, want %d\n%.100s", c.method, c.url, status, c.want, body)
		}
	}
}

// TestLiveFollows checks that a page is drawn again if and only if the run has
// progressed.
func TestLiveFollows(t *testing.T) {
	const url = "http://127.0.0.1/?token=secret"
	stamp, d := "1", night()
	live, drawn := served(d, &stamp), 0
	draw := live.Draw
	live.Draw = func() (*Report, error) { drawn++; return draw() }
	_, first, tag := ask(live, "GET", url, nil)
	if !strings.Contains(first, "<script nonce=") || strings.Contains(html(t, New(d.Input)), "<script") {
		t.Error("a live page has a script, and a report none")
	}
	if status, body, again := ask(live, "GET", url, map[string]string{"If-None-Match": tag}); status != 304 || body != "" || again != tag || drawn != 1 {
		t.Errorf("nothing has changed: %d, %d bytes, drawn %d times", status, len(body), drawn)
	}
	live.drawn = live.drawn.Add(-liveEvery)
	if ask(live, "GET", url, nil); drawn != 1 {
		t.Errorf("nothing has changed for a second: drawn %d times", drawn)
	}
	live.drawn = time.Now()
	stamp = "2"
	if status, _, _ := ask(live, "GET", url, map[string]string{"If-None-Match": tag}); status != 304 || drawn != 1 {
		t.Errorf("within a second: %d, drawn %d times", status, drawn)
	}
	live.drawn = live.drawn.Add(-liveEvery)
	if status, _, again := ask(live, "GET", url, map[string]string{"If-None-Match": tag}); status != 200 || again == tag || drawn != 2 {
		t.Errorf("after a second: %d, drawn %d times", status, drawn)
	}
	live.page, live.Draw = nil, func() (*Report, error) { return nil, errors.New("it cannot be read") }
	if status, body, _ := ask(live, "GET", url, nil); status != 500 || !strings.Contains(body, "it cannot be read") {
		t.Errorf("%d: %s", status, body)
	}
}

// TestLiveWaits checks that a request that asks to wait is answered when the run ends,
// with the run's last state, even if the previous page was drawn only a moment ago. Other
// requests must not be kept waiting.
func TestLiveWaits(t *testing.T) {
	const url = "http://127.0.0.1/?token=secret"
	stamp, d := "1", night()
	live := served(d, &stamp)
	_, _, tag := ask(live, "GET", url, nil)
	if status, _, _ := ask(live, "GET", url, map[string]string{"If-None-Match": tag}); status != 304 {
		t.Errorf("%d for one who does not wait", status)
	}
	live.End()
	if status, _, _ := ask(live, "GET", url, map[string]string{"If-None-Match": tag, "Prefer": "wait"}); status != 304 {
		t.Errorf("%d, and nothing has changed", status)
	}
	stamp = "2"
	if status, _, last := ask(live, "GET", url, map[string]string{"If-None-Match": tag, "Prefer": "wait"}); status != 200 || last == tag {
		t.Errorf("%d for the last state", status)
	}
}

// TestPrometheus checks the metrics with Prometheus' own parser.
func TestPrometheus(t *testing.T) {
	run := func(files map[string]string) map[string]float64 {
		t.Helper()
		dir := filepath.Join(t.TempDir(), `night "1"`)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for name, text := range files {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		var text bytes.Buffer
		if err := Prometheus(&text, dir); err != nil {
			t.Fatal(err)
		}
		var parser expfmt.TextParser
		families, err := parser.TextToMetricFamilies(&text)
		if err != nil {
			t.Fatal(err)
		}
		values := map[string]float64{}
		for name, f := range families {
			m := f.GetMetric()
			if len(m) != 1 || m[0].GetLabel()[0].GetValue() != `night "1"` || f.GetHelp() == "" {
				t.Errorf("%s: %v", name, f)
			}
			values[name] = m[0].GetGauge().GetValue() + m[0].GetCounter().GetValue()
		}
		return values
	}
	native := run(map[string]string{
		"journal.jsonl": `{"kind":"attempt","attempt":1}` + "\n" + `{"kind":"oom","attempt":1,"step":3,"seconds":2,"oom":{"phase":"forward"}}` + "\n" + `{"kind":"checkpoint","attempt":1,"step":40}` + "\n",
		"status.json":   `{"state":"done","attempt":1,"step":50,"steps":60,"plan":{"effective":64,"world":1,"micro":22},"samples_per_second":80.5,"peak":1024,"capacity":4096}`,
	})
	for name, want := range map[string]float64{"headroom_run_running": 0, "headroom_attempts_total": 1, "headroom_out_of_memory_total": 1, "headroom_lost_seconds_total": 2, "headroom_checkpoint_step": 40,
		"headroom_steps_total": 50, "headroom_steps_planned": 60, "headroom_samples_per_second": 80.5, "headroom_batch_effective": 64, "headroom_batch_micro": 22,
		"headroom_memory_peak_bytes": 1024, "headroom_memory_capacity_bytes": 4096} {
		if got, ok := native[name]; !ok || got != want {
			t.Errorf("%s is %v (%v), want %v", name, got, ok, want)
		}
	}
	wrapped := run(map[string]string{
		"run.yaml":      "command: [python, train.py]\n",
		"journal.jsonl": `{"kind":"attempt","attempt":1}` + "\n",
		"metrics.jsonl": `{"pid":7,"made":30,"rows":512,"pieces":4,"seconds":0.25,"host":500,"lost":2.5,"memory":{"capacity":4096,"allocated":1000,"reserved":2000,"peak":3000}}` + "\n",
	})
	for name, want := range map[string]float64{"headroom_run_running": 1, "headroom_process_steps_total": 30, "headroom_step_seconds": 0.25, "headroom_batch_rows": 512, "headroom_batch_pieces": 4,
		"headroom_memory_host_bytes": 500, "headroom_host_seconds_total": 2.5,
		"headroom_memory_allocated_bytes": 1000, "headroom_memory_reserved_bytes": 2000, "headroom_memory_peak_bytes": 3000, "headroom_memory_capacity_bytes": 4096} {
		if got, ok := wrapped[name]; !ok || got != want {
			t.Errorf("%s is %v (%v), want %v", name, got, ok, want)
		}
	}
	for journal, want := range map[string]float64{
		`{"kind":"survived","attempt":1,"seconds":3,"text":"out of memory"}`: 3,
		`{"kind":"survived","attempt":1,"text":"out of memory"}`:             -1, // the time that it cost is not known
		`{"kind":"warning","attempt":1,"text":"careful"}`:                    0,
	} {
		got, known := run(map[string]string{"run.yaml": "command: [python, train.py]\n", "journal.jsonl": journal + "\n"})["headroom_lost_seconds_total"]
		if known != (want >= 0) || known && got != want {
			t.Errorf("%s: %v lost (%v), want %v", journal, got, known, want)
		}
	}
	for _, name := range []string{"headroom_steps_total", "headroom_batch_effective"} {
		if _, ok := wrapped[name]; ok {
			t.Errorf("%s is not known of a command", name)
		}
	}
}
