package report

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
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
)

// browser starts a headless Chromium that is gone, with all that it wrote, when
// the test ends.
func browser(t *testing.T) context.Context {
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

// awaitEnd waits for every process that names folder on its command line: the
// browser's own children end a moment after it.
func awaitEnd(t *testing.T, folder string) {
	t.Helper()
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range lines {
		line, err := os.ReadFile(path)
		if err != nil || !strings.Contains(string(line), folder) {
			continue // ended meanwhile, or another one's
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err != nil {
			t.Fatal(err)
		}
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			continue // ended meanwhile
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

// trouble collects what a page should not do: complain, or load anything.
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

// layout is what a page measures of itself.
type layout struct {
	Pictures []struct {
		ID            string
		Width, Height float64
	}
	Headline string
	Overflow float64 // pixels that the page is wider than its window
	Cut      []string
	Hidden   []string
	Faint    []string
	Ground   string // colour behind the page
}

// measure runs in the page. Cut is text that reaches out of its picture, Faint
// text with a contrast below 4.5 to what is behind it (WCAG 2.1, 1.4.3). Hidden is
// what is wider than its frame where nothing says that it can be scrolled.
const measure = `(() => {
	const box = e => e.getBoundingClientRect();
	const rgb = c => c.match(/[\d.]+/g).map(Number);
	const light = c => { const [r, g, b] = rgb(c).map(v => v / 255).map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); return 0.2126 * r + 0.7152 * g + 0.0722 * b };
	const behind = e => { for (; e; e = e.parentElement) {
		if (e.matches('g.mark')) return getComputedStyle(e.querySelector('rect')).fill;
		const c = getComputedStyle(e).backgroundColor; if (rgb(c)[3] !== 0) return c; } return 'rgb(255, 255, 255)' };
	const texts = [...document.querySelectorAll('main *')].filter(e => !e.matches('title, desc, style') && [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim()));
	const faint = texts.filter(e => { const s = getComputedStyle(e), a = light(e instanceof SVGElement ? s.fill : s.color), b = light(behind(e)); return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05) < 4.5 });
	const cut = [...document.querySelectorAll('svg text')].filter(e => { const t = box(e), p = box(e.closest('svg')); return t.width === 0 || t.left < p.left - 1 || t.right > p.right + 1 || t.top < p.top - 1 || t.bottom > p.bottom + 1 });
	const hidden = [...document.querySelectorAll('figure, .table')].filter(e => e.scrollWidth > e.clientWidth + 1 && getComputedStyle(e, '::before').content === 'none');
	return {
		Pictures: [...document.querySelectorAll('figure > svg')].map(e => ({ID: e.parentElement.id, Width: box(e).width, Height: box(e).height})),
		Headline: document.querySelector('h1').innerText,
		Overflow: document.documentElement.scrollWidth - window.innerWidth,
		Cut: cut.map(e => e.textContent), Faint: faint.map(e => e.textContent),
		Hidden: hidden.map(e => e.id || e.innerText.slice(0, 40)),
		Ground: getComputedStyle(document.body).backgroundColor,
	};
})()`

// view is one way of looking at the page.
type view struct {
	name, scheme, media string
	width, height       int64
}

var views = []view{
	{"light", "light", "screen", 1280, 900},
	{"dark", "dark", "screen", 1280, 900},
	{"tablet", "light", "screen", 820, 1180},
	{"narrow", "light", "screen", 500, 900},
	{"phone", "light", "screen", 390, 844},
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
	for _, name := range []string{"night", "broken", "storm", "failures only", "no numbers", "nothing"} {
		t.Run(name, func(t *testing.T) { look(ctx, t, pages[name], strings.ReplaceAll(name, " ", "-")) })
	}
}

// storm is a run with many failures of every cause.
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
	keep := os.Getenv("HEADROOM_SCREENSHOTS") // a folder, for a person to look at them
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
	if len(l.Pictures) != len(r.Pictures()) {
		t.Errorf("%s: %d pictures, want %d", v.name, len(l.Pictures), len(r.Pictures()))
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
