package report

import (
	"bytes"
	"cmp"
	"context"
	"flag"
	"fmt"
	"io"
	"math"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	cdplog "github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"golang.org/x/sys/unix"

	"headroom/memory"
	"headroom/recovery"
	"headroom/runs"
)

// browser starts a headless Chromium. When the test ends, the browser is stopped and its
// files are removed.
func browser(t testing.TB) context.Context {
	t.Helper()
	program := ""
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome", "chrome", "headless-shell"} {
		if found, err := exec.LookPath(name); err == nil {
			program = found
			break
		}
	}
	if program == "" {
		if os.Getenv("HEADROOM_REQUIRE_BROWSER") == "1" {
			t.Fatal("HEADROOM_REQUIRE_BROWSER=1, and there is no Chromium in PATH")
		}
		t.Skip("NO BROWSER: the report was not opened in one; install chromium, or see HEADROOM_REQUIRE_BROWSER")
	}
	home := t.TempDir()
	t.Cleanup(func() { awaitEnd(t, home) })
	options := append(slices.Clone(chromedp.DefaultExecAllocatorOptions[:]),
		chromedp.ExecPath(program), chromedp.NoSandbox, chromedp.DisableGPU, chromedp.UserDataDir(filepath.Join(home, "profile")),
		chromedp.Flag("disable-quic", true), chromedp.Flag("disable-component-update", true),
		chromedp.Env("HOME="+home, "TMPDIR="+home, "XDG_CONFIG_HOME="+home, "XDG_CACHE_HOME="+home))
	ctx, cancel := context.WithTimeout(context.Background(), 90*time.Second)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewExecAllocator(ctx, options...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	if err := chromedp.Run(ctx); err != nil {
		t.Fatalf("start %s: %v", program, err)
	}
	t.Cleanup(func() {
		if err := chromedp.Cancel(ctx); err != nil {
			t.Errorf("end the browser: %v", err)
		}
	})
	return ctx
}

// awaitEnd waits until every process that has folder on its command line has ended. The
// browser's child processes end a moment after the browser itself.
func awaitEnd(t testing.TB, folder string) {
	t.Helper()
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range lines {
		line, err := os.ReadFile(path)
		if err != nil || !strings.Contains(string(line), folder) {
			continue // the process has ended meanwhile, or is another user's
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err != nil {
			t.Fatal(err)
		}
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			continue // the process has ended meanwhile
		}
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 10_000)
		if n == 0 {
			t.Errorf("process %d of the browser outlives the test", pid)
		}
		if err := unix.Close(fd); err != nil {
			t.Error(err)
		}
		if err != nil {
			t.Logf("wait for process %d: %v", pid, err)
		}
	}
}

// trouble collects the errors that a page reports and the requests that it sends for
// anything but itself. A sound page reports no errors and sends no such requests.
type trouble struct {
	mu   sync.Mutex
	page string
	list []string
}

func (w *trouble) listen(event any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch e := event.(type) {
	case *runtime.EventConsoleAPICalled:
		w.list = append(w.list, fmt.Sprintf("console: %s", e.Type))
	case *runtime.EventExceptionThrown:
		w.list = append(w.list, "exception: "+e.ExceptionDetails.Error())
	case *cdplog.EventEntryAdded:
		w.list = append(w.list, "log: "+e.Entry.Text)
	case *network.EventLoadingFailed:
		w.list = append(w.list, "loading failed: "+e.ErrorText)
	case *network.EventRequestWillBeSent:
		if e.Request.URL != w.page && !strings.HasPrefix(e.Request.URL, "data:") {
			w.list = append(w.list, "request: "+e.Request.URL)
		}
	}
}

func (w *trouble) told() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return strings.Join(w.list, "\n")
}

// layout is what the script measure returns about a page.
type layout struct {
	Pictures []struct {
		ID            string
		Width, Height float64
	}
	Headline string
	Overflow float64 // pixels by which the page is wider than its window
	Cut      []string
	Hidden   []string
	Broken   []string // words and numbers that continue on the next line
	Faint    []string
	Ground   string // colour behind the page
}

// measure is a script that runs in the page. Cut is text that extends beyond its picture.
// Faint is text whose contrast with the background is below 4.5 (WCAG 2.1, 1.4.3). Hidden
// is content wider than its frame if nothing shows that the frame can be scrolled.
const measure = `(() => {
	document.querySelectorAll('details').forEach(e => { e.open = true });
	const box = e => e.getBoundingClientRect();
	const rgb = c => c.match(/[\d.]+/g).map(Number);
	const light = c => { const [r, g, b] = rgb(c).map(v => v / 255).map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); return 0.2126 * r + 0.7152 * g + 0.0722 * b };
	const behind = e => { for (; e; e = e.parentElement) {
		if (e.matches('g.mark')) return getComputedStyle(e.querySelector('rect')).fill;
		const c = getComputedStyle(e).backgroundColor; if (rgb(c)[3] !== 0) return c; } return 'rgb(255, 255, 255)' };
	const texts = [...document.querySelectorAll('main *')].filter(e => !e.matches('title, desc, style') && [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim()));
	const faint = texts.filter(e => { const s = getComputedStyle(e), a = light(e instanceof SVGElement ? s.fill : s.color), b = light(behind(e)); return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05) < 4.5 });
	const cut = [...document.querySelectorAll('svg text')].filter(e => box(e.closest('svg')).width > 0).filter(e => { const t = box(e), p = box(e.closest('svg')); return t.width === 0 || t.left < p.left - 1 || t.right > p.right + 1 || t.top < p.top - 1 || t.bottom > p.bottom + 1 });
	const hidden = [...document.querySelectorAll('figure, .table')].filter(e => e.scrollWidth > e.clientWidth + 1 && getComputedStyle(e, '::before').content === 'none');
	const broken = [], walk = document.createTreeWalker(document.querySelector('main'), NodeFilter.SHOW_TEXT);
	while (walk.nextNode()) {
		const n = walk.currentNode, range = document.createRange();
		for (const word of n.parentElement.closest('svg') ? [] : n.data.matchAll(/[^\s\/-]+/g)) {
			range.setStart(n, word.index); range.setEnd(n, word.index + word[0].length);
			if (word[0].length <= 24 && new Set([...range.getClientRects()].filter(r => r.width > 0).map(r => Math.round(r.top))).size > 1) broken.push(word[0]);
		}
	}
	return {
		Broken: broken, Pictures: [...document.querySelectorAll('figure > svg')].filter(e => box(e).width > 0).map(e => ({ID: e.parentElement.id, Width: box(e).width, Height: box(e).height})),
		Headline: document.querySelector('h1').innerText,
		Overflow: document.documentElement.scrollWidth - window.innerWidth,
		Cut: cut.map(e => e.textContent), Faint: faint.map(e => e.textContent),
		Hidden: hidden.map(e => e.id || e.innerText.slice(0, 40)),
		Ground: getComputedStyle(document.body).backgroundColor,
	};
})()`

// view is one way of displaying the page.
type view struct {
	name, scheme, media string
	width, height       int64
}

var views = []view{
	{"light", "light", "screen", 1280, 900},
	{"dark", "dark", "screen", 1280, 900},
	{"tablet", "light", "screen", 820, 1180},
	{"narrow", "light", "screen", 500, 900},
	{"phone", "light", "screen", 375, 812},
	{"print", "dark", "print", 794, 1123},
}

func (v view) show() chromedp.Tasks {
	return chromedp.Tasks{
		chromedp.EmulateViewport(v.width, v.height),
		chromedp.ActionFunc(func(ctx context.Context) error {
			return emulation.SetEmulatedMedia().WithMedia(v.media).
				WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: v.scheme}}).Do(ctx)
		}),
	}
}

func TestReportInABrowser(t *testing.T) {
	if testing.Short() && os.Getenv("HEADROOM_REQUIRE_BROWSER") != "1" {
		t.Skip("short: the report was not opened in a browser")
	}
	ctx := browser(t)
	pages := oddRuns()
	pages["broken"] = night()
	pages["broken"].Steps[99].Samples = 63
	pages["storm"] = storm()
	pages["restarted"], pages["gave up"] = restarted(17), gaveUp(13)
	for _, name := range []string{"night", "broken", "storm", "restarted", "gave up", "failures only", "no numbers", "nothing"} {
		t.Run(name, func(t *testing.T) { look(ctx, t, pages[name], strings.ReplaceAll(name, " ", "-")) })
	}
}

// storm returns a run with many failures from every cause.
func storm() *diary {
	d := newDiary("storm", 400)
	d.plan.Micro = 22
	d.begin()
	causes := []memory.Cause{memory.Spike, memory.Fragmentation, memory.Foreign, memory.Leak, memory.Batch, memory.Unknown, memory.Host, memory.Model}
	for d.step < 400 {
		v := d.oom(0, causes[d.step/5%len(causes)], "this step needed far more than those before it")
		d.decide(recovery.ShrinkStep, 8, v, "for this step only")
		d.walk(d.step+5, 0)
	}
	return d
}

func look(ctx context.Context, t *testing.T, d *diary, name string) {
	dir := t.TempDir()
	r := New(d.Input)
	if err := r.Write(dir); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := chromedp.NewContext(ctx) // a tab of its own
	defer cancel()
	watch := &trouble{page: "file://" + filepath.Join(dir, "report.html")}
	chromedp.ListenTarget(ctx, watch.listen)
	if err := chromedp.Run(ctx, network.Enable(), cdplog.Enable(), runtime.Enable(), chromedp.Navigate(watch.page)); err != nil {
		t.Fatal(err)
	}
	keep := os.Getenv("HEADROOM_SCREENSHOTS") // a folder for screenshots, for a person to look at
	grounds := map[string]string{}
	for _, v := range views {
		var l layout
		if err := chromedp.Run(ctx, v.show(), chromedp.Evaluate(measure, &l)); err != nil {
			t.Fatalf("%s: %v", v.name, err)
		}
		v.check(t, r, l)
		grounds[v.name] = l.Ground
		if name == "night" || keep != "" {
			screenshot(ctx, t, filepath.Join(cmp.Or(keep, dir), name+"-"+v.name+".png"))
		}
	}
	if grounds["dark"] == grounds["light"] || grounds["print"] != "rgb(255, 255, 255)" {
		t.Errorf("grounds %v: dark is dark, and paper is white", grounds)
	}
	if told := watch.told(); told != "" {
		t.Errorf("the page complains:\n%s", told)
	}
}

func (v view) check(t *testing.T, r *Report, l layout) {
	t.Helper()
	if len(l.Pictures) != len(r.draw()) {
		t.Errorf("%s: %d pictures, want %d", v.name, len(l.Pictures), len(r.draw()))
	}
	for _, p := range l.Pictures {
		if !(p.Width >= 300 && p.Height >= 100) || math.IsInf(p.Width*p.Height, 0) {
			t.Errorf("%s: %s is %v × %v", v.name, p.ID, p.Width, p.Height)
		}
	}
	if !strings.EqualFold(l.Headline, r.Outcome.Title) {
		t.Errorf("%s: headline %q", v.name, l.Headline)
	}
	if l.Overflow > 0 {
		t.Errorf("%s: the page is %v pixels wider than its window", v.name, l.Overflow)
	}
	if len(l.Broken) > 0 {
		t.Errorf("%s: broken inside a word: %q", v.name, l.Broken)
	}
	if len(l.Hidden) > 0 {
		t.Errorf("%s: cut off without a word: %q", v.name, l.Hidden)
	}
	if len(l.Cut) > 0 || len(l.Faint) > 0 {
		t.Errorf("%s: text that is cut: %q; text that is faint: %q", v.name, l.Cut, l.Faint)
	}
}

// screenshot writes a picture of the whole page to path.
func screenshot(ctx context.Context, t *testing.T, path string) {
	t.Helper()
	var png []byte
	if err := chromedp.Run(ctx, chromedp.FullScreenshot(&png, 100)); err != nil {
		t.Fatal(err)
	}
	if len(png) < 10_000 {
		t.Errorf("a screenshot of %d bytes", len(png))
	}
	if err := os.WriteFile(path, png, 0o644); err != nil {
		t.Fatal(err)
	}
}

// grown returns a run that is still in progress after the given number of steps, with a
// failure now and then.
func grown(steps int) *diary {
	d := newDiary("live", 20_000)
	d.plan.Micro = 22
	d.begin()
	for d.step < steps {
		if d.step%2_000 == 1_000 {
			v := d.oom(0, memory.Spike, "this step needed far more than those before it")
			d.decide(recovery.ShrinkStep, 8, v, "for this step only")
		}
		d.walk(min(steps, d.step+1_000), 0)
	}
	d.Running = true
	return d
}

// onTheAir serves a live page of the run in now, which the test may replace at any time.
// It loads the page in a browser tab and returns watch, which listens to the events of
// that tab.
func onTheAir(ctx context.Context, t testing.TB, now *atomic.Pointer[diary]) (live *Live, server *httptest.Server, watch *trouble) {
	t.Helper()
	live = &Live{Token: "secret", Draw: func() (*Report, error) { return New(now.Load().Input), nil },
		Stamp: func() string { return fmt.Sprint(now.Load().step, now.Load().Running) }}
	server = httptest.NewServer(live)
	t.Cleanup(server.Close)
	watch = &trouble{page: server.URL + "/?token=secret"}
	chromedp.ListenTarget(ctx, watch.listen)
	if err := chromedp.Run(ctx, network.Enable(), cdplog.Enable(), runtime.Enable(), chromedp.EmulateViewport(390, 844), chromedp.Navigate(watch.page)); err != nil {
		t.Fatal(err)
	}
	return live, server, watch
}

// TestLivePageInABrowser checks that the page follows a run without being loaded again,
// and that it keeps the scroll position, the open folds and the focus. When the server no
// longer answers, the page must say so.
func TestLivePageInABrowser(t *testing.T) {
	ctx, cancel := chromedp.NewContext(browser(t))
	defer cancel()
	var now atomic.Pointer[diary]
	now.Store(grown(500))
	live, server, watch := onTheAir(ctx, t, &now)
	var before string
	const table = `document.querySelector("[aria-labelledby=sizes]")`
	err := chromedp.Run(ctx, chromedp.Poll(`document.documentElement.dataset.redrawn`, nil), // the page has asked the server once
		chromedp.Text("h1", &before), chromedp.Evaluate(table+`.focus({preventScroll: true}); window.scrollTo(0, 300); window.same = true`, nil))
	if err != nil {
		t.Fatal(err)
	}
	now.Store(grown(700))
	var after, focused string
	var scrolled float64
	var same bool
	err = chromedp.Run(ctx, chromedp.Poll(`document.querySelector("h1").innerText.includes("700")`, nil, chromedp.WithPollingTimeout(30*time.Second)), chromedp.Text("h1", &after),
		chromedp.Evaluate(`window.scrollY`, &scrolled), chromedp.Evaluate(`document.activeElement.getAttribute("aria-labelledby")`, &focused), chromedp.Evaluate(`window.same`, &same))
	if err != nil || !strings.Contains(before, "500") || scrolled != 300 || focused != "sizes" || !same {
		t.Errorf("%v: %q became %q, scrolled %v, focus %q, same page %v", err, before, after, scrolled, focused, same)
	}
	folded := func(rows int) *diary {
		d := grown(710 + rows)
		for range rows {
			d.entry(runs.Entry{Kind: runs.KindWarning, Text: "what stays allocated grows"})
		}
		return d
	}
	now.Store(folded(13))
	var open bool
	if err := chromedp.Run(ctx, chromedp.Poll(`document.querySelector("#older")`, nil, chromedp.WithPollingTimeout(30*time.Second)), chromedp.Evaluate(`document.querySelector("#older").open`, &open)); err != nil || open {
		t.Errorf("%v: many rows are folded: %v", err, !open)
	}
	err = chromedp.Run(ctx, chromedp.Evaluate(`document.querySelector("#older").open = true`, nil), chromedp.ActionFunc(func(context.Context) error { now.Store(folded(14)); return nil }),
		chromedp.Poll(`document.querySelector("h1").innerText.includes("724")`, nil, chromedp.WithPollingTimeout(30*time.Second)), chromedp.Evaluate(`document.querySelector("#older").open`, &open))
	if err != nil || !open {
		t.Errorf("%v: what was unfolded stays so: %v", err, open)
	}
	if told := watch.told(); told != "" {
		t.Errorf("the page complains:\n%s", told)
	}
	end := *grown(700)
	end.Running = false
	end.entry(runs.Entry{Kind: runs.KindDone, Text: "done"})
	now.Store(&end)
	live.End()
	if err := chromedp.Run(ctx, chromedp.Poll(`document.querySelector("h1").innerText.toLowerCase().startsWith("finished")`, nil, chromedp.WithPollingTimeout(30*time.Second))); err != nil {
		t.Errorf("the end does not show: %v", err)
	}
	server.CloseClientConnections()
	server.Close()
	var gone string
	if err := chromedp.Run(ctx, chromedp.Poll(`!document.getElementById("gone").hidden`, nil, chromedp.WithPollingTimeout(30*time.Second)), chromedp.Text("#gone", &gone)); err != nil ||
		!strings.HasPrefix(gone, "The run has ended") {
		t.Errorf("%v: %q", err, gone)
	}
}

// BenchmarkLivePage measures how long the browser takes to redraw a run of 10,000 steps,
// including layout, and how large the page is.
func BenchmarkLivePage(b *testing.B) {
	ctx, cancel := chromedp.NewContext(browser(b))
	defer cancel()
	var now atomic.Pointer[diary]
	now.Store(grown(10_000))
	onTheAir(ctx, b, &now)
	var all []float64
	for b.Loop() {
		d := *now.Load()
		d.step++
		now.Store(&d)
		var redrawn string
		err := chromedp.Run(ctx, chromedp.Evaluate(`delete document.documentElement.dataset.redrawn`, nil),
			chromedp.Poll(`document.documentElement.dataset.redrawn`, &redrawn, chromedp.WithPollingTimeout(30*time.Second)))
		if err != nil {
			b.Fatal(err)
		}
		ms, err := strconv.ParseFloat(redrawn, 64)
		if err != nil {
			b.Fatal(err)
		}
		all = append(all, ms)
	}
	slices.Sort(all)
	var page strings.Builder
	if err := New(now.Load().Input).HTML(&page); err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(all[len(all)/2], "ms-to-redraw")
	b.ReportMetric(all[len(all)-1], "ms-at-most")
	b.ReportMetric(float64(page.Len())/1024, "KiB")
	b.ReportMetric(0, "ns/op")
}

var update = flag.Bool("update", false, "rewrite golden files")

// wording is a script that runs in the page. It collects every visible text, in order,
// with the text's element and colour.
const wording = `(() => [...document.querySelectorAll('main *')]
	.filter(e => !e.matches('title, desc, style') && [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim()))
	.filter(e => { const r = e.getBoundingClientRect(); return r.width > 1 && r.height > 1 })
	.map(e => { const s = getComputedStyle(e), label = getComputedStyle(e, '::before').content;
		const text = [...e.childNodes].filter(n => n.nodeType === 3).map(n => n.data.trim().replace(/\s+/g, ' ')).join(' ').trim();
		return (e.localName + '.' + (e.getAttribute('class') || '').trim().replace(/ /g, '.')).replace(/\.$/, '') + ' [' + (e instanceof SVGElement ? s.fill : s.color) + '] '
			+ (label && label !== 'none' && label !== 'normal' ? label + ' ' : '') + text })
	.join('\n') + '\n')()`

// TestPagesAsGoldenFiles compares the texts of pages and their colours, on a desktop and
// a phone, in light and dark, with the files in testdata/pages. With -update it rewrites
// these files.
func TestPagesAsGoldenFiles(t *testing.T) {
	if testing.Short() && os.Getenv("HEADROOM_REQUIRE_BROWSER") != "1" {
		t.Skip("short: the pages were not opened in a browser")
	}
	ctx, cancel := chromedp.NewContext(browser(t))
	defer cancel()
	survived := survivedInside()
	survived.Attempt, survived.Time = 1, at(600)
	wrapped := Input{Name: "train-run", Command: "python train.py --batch-size 512", Entries: []runs.Entry{
		{Kind: runs.KindAttempt, Attempt: 1, Time: at(0)}, survived, {Kind: runs.KindDone, Attempt: 1, Time: at(9000), Text: "the command ended with 0"}}}
	broken := night()
	broken.Name, broken.Steps[99].Samples = "broken", 63
	cut := New(Input{Name: "cut", Command: "python train.py", Entries: []runs.Entry{{Kind: runs.KindAttempt, Attempt: 1, Time: at(-5000)}, {Kind: runs.KindWarning, Attempt: 1, Time: at(-4000), Text: "what stays allocated grows"}}})
	for name, write := range map[string]func(io.Writer) error{
		"night": New(night().Input).HTML, "broken": New(broken.Input).HTML, "wrapped": New(wrapped).HTML,
		"restarted": New(restarted(17).Input).HTML, "gave-up": New(gaveUp(13).Input).HTML,
		"overview": NewOverview(at(10_000), []*Report{New(night().Input), New(broken.Input), New(wrapped), cut}).HTML,
	} {
		path := filepath.Join(t.TempDir(), name+".html")
		var page bytes.Buffer
		if err := write(&page); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, page.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, v := range []view{views[0], views[1], {"phone", "light", "screen", 375, 812}, {"phone-dark", "dark", "screen", 375, 812}} {
			var got string
			var l layout
			if err := chromedp.Run(ctx, v.show(), chromedp.Navigate("file://"+path), chromedp.Evaluate(wording, &got), chromedp.Evaluate(measure, &l)); err != nil {
				t.Fatal(err)
			}
			if l.Overflow > 0 || len(l.Cut)+len(l.Faint)+len(l.Hidden)+len(l.Broken) > 0 {
				t.Errorf("%s, %s: %v pixels too wide; cut %q, faint %q, hidden %q, broken %q", name, v.name, l.Overflow, l.Cut, l.Faint, l.Hidden, l.Broken)
			}
			golden := filepath.Join("testdata", "pages", name+"-"+v.name+".txt")
			if *update {
				if err := os.MkdirAll(filepath.Dir(golden), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if got != string(want) {
				t.Errorf("%s differs; look at it, then: go test -tags cuda ./report -run GoldenFiles -update\n%s", golden, firstDifference(got, string(want)))
			}
		}
	}
}

// firstDifference describes the first line in which two texts differ.
func firstDifference(got, want string) string {
	a, b := strings.Split(got, "\n"), strings.Split(want, "\n")
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return fmt.Sprintf("line %d: %s\nwant    %s", i+1, a[i], b[i])
		}
	}
	return fmt.Sprintf("%d lines, want %d", len(a), len(b))
}

// at returns the time that is the given number of seconds after the time at which every
// diary begins.
func at(seconds int) time.Time {
	return time.Date(2026, 3, 2, 22, 14, 5, 0, time.UTC).Add(time.Duration(seconds) * time.Second)
}
