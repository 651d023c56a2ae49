package main

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"headroom/configs"
)

// read returns what is served at url now.
func read(t *testing.T, url string) (status int, text string) {
	t.Helper()
	answer, err := http.Get(url) //nolint:gosec // the test's own server
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close() //nolint:errcheck // it was read
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, string(body)
}

// TestRunIsLookedAt checks that a run can be viewed while it is in progress, at the
// addresses that headroom prints, even with --quiet; that the exit status and the output
// are the command's own; and that nothing answers at these addresses once the run has
// ended.
func TestRunIsLookedAt(t *testing.T) {
	for _, quiet := range []bool{false, true} {
		inEmptyFolder(t, "wait.py", "import signal, sys\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\nprint('running', flush=True)\nsignal.pause()\n")
		args := []string{"run", "--web", "--metrics", "127.0.0.1:0", "--", "python3", "wait.py"}
		if quiet {
			args = append([]string{"run", "--quiet"}, args[1:]...)
		}
		c := exec.Command("headroom", args...)
		said, err := c.StderrPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := c.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(said)
		address := func(pattern string) string {
			if !lines.Scan() {
				t.Fatalf("it says no more: %v", lines.Err())
			}
			found := regexp.MustCompile(pattern).FindStringSubmatch(lines.Text())
			if found == nil {
				t.Fatalf("%q is not %s", lines.Text(), pattern)
			}
			return found[1]
		}
		page, metrics := address(`^headroom: live page: (http://127\.0\.0\.1:\d+/\?token=\w{26})$`), address(`^headroom: metrics: (http://127\.0\.0\.1:\d+/metrics)$`)
		output := bufio.NewReader(out)
		if first, err := output.ReadString('\n'); err != nil || first != "running\n" {
			t.Fatalf("%q, %v", first, err)
		}
		if status, text := read(t, page); status != 200 || !strings.Contains(text, "<h1>running") || !strings.Contains(text, "wait.py") {
			t.Errorf("%d\n%s", status, text)
		}
		if status, text := read(t, strings.TrimRight(page, "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567")); status != 403 || strings.Contains(text, "wait") {
			t.Errorf("without the token: %d\n%s", status, text)
		}
		if status, text := read(t, metrics); status != 200 || !strings.Contains(text, "headroom_run_running{run=\"wait-run\"} 1\n") {
			t.Errorf("%d\n%s", status, text)
		}
		if status, text := read(t, strings.Replace(metrics, "127.0.0.1", "localhost", 1)); status != 200 {
			t.Errorf("by the name localhost: %d\n%s", status, text)
		}
		rebound, err := http.NewRequest(http.MethodGet, metrics, nil)
		if err != nil {
			t.Fatal(err)
		}
		rebound.Host = "evil.example:80"
		if answer, err := http.DefaultClient.Do(rebound); err != nil || answer.StatusCode != 403 || answer.Body.Close() != nil {
			t.Errorf("by somebody else's name: %+v, %v", answer, err)
		}
		if status, _ := read(t, strings.TrimSuffix(metrics, "metrics")); status != 404 {
			t.Errorf("%d beside the metrics", status)
		}
		if err := c.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		if rest, err := io.ReadAll(output); err != nil || len(rest) > 0 {
			t.Errorf("more output: %q, %v", rest, err)
		}
		if err := c.Wait(); c.ProcessState.ExitCode() != 7 {
			t.Errorf("%v, want the command's own status, 7", err)
		}
		for _, url := range []string{page, metrics} {
			if _, err := net.DialTimeout("tcp", strings.Split(url, "/")[2], 10*time.Second); err == nil {
				t.Errorf("%s still answers", url)
			}
		}
	}
}

// TestAdmitted checks by which names the metrics can be read.
func TestAdmitted(t *testing.T) {
	loopback, everywhere := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 9408}, &net.TCPAddr{IP: net.IPv6unspecified, Port: 9408}
	for _, c := range []struct {
		host, given string
		at          net.Addr
		want        bool
	}{
		{"127.0.0.1:9408", "127.0.0.1:9408", loopback, true},
		{"localhost", "127.0.0.1:9408", loopback, true},
		{"[::1]:9408", "127.0.0.1:9408", loopback, true},
		{"evil.example:9408", "127.0.0.1:9408", loopback, false},
		{"node7:9408", "127.0.0.1:9408", loopback, false},
		{"10.0.0.7:9408", "127.0.0.1:9408", loopback, false},
		{"", "127.0.0.1:9408", loopback, false},
		{"Train.Local:9408", "train.local:9408", loopback, true},
		{"10.0.0.7:9408", ":9408", everywhere, true},
		{"[fe80::7]:9408", "0.0.0.0:9408", everywhere, true},
		{"trainer:9408", "0.0.0.0:9408", everywhere, true},
		{"Node7.cluster.example.:9408", "0.0.0.0:9408", everywhere, true},
		{"node8.cluster.example:9408", "0.0.0.0:9408", everywhere, false},
		{"evil.example", "0.0.0.0:9408", everywhere, false},
		{"", ":9408", everywhere, false},
		{"gpu.example:9408", "gpu.example:9408", everywhere, true},
	} {
		if got := admitted(c.host, c.given, c.at, "node7.local"); got != c.want {
			t.Errorf("%q with --metrics %s: %v, want %v", c.host, c.given, got, c.want)
		}
	}
}

// TestHalfOpenConnections checks that a command is started again although somebody has opened more
// connections than the process may have files, and sends no request on them.
func TestHalfOpenConnections(t *testing.T) {
	inEmptyFolder(t, "oom.txt", `Traceback (most recent call last):
  File "/work/train.py", line 14, in forward
    return self.fc(x)
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.25 GiB of which 1.10 GiB is free. Process 71 has 78.14 GiB memory in use. Of the allocated memory 77.50 GiB is allocated by PyTorch, and 100.00 MiB is reserved by PyTorch but unallocated.
`)
	if err := os.WriteFile("train", []byte("#!/bin/sh\n[ $2 -le 32 ] && exit 0\nwhile ! [ -e flooded ]; do sleep 0.05; done; cat oom.txt >&2; exit 1\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	c := exec.Command("sh", "-c", `ulimit -n 128; exec headroom run --web --metrics 127.0.0.1:0 --name flooded --trust --knob micro=--bs --knob accumulation=--accum -- ./train --bs 64 --accum 1`)
	said, err := c.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	lines := bufio.NewScanner(said)
	for range 2 { // the two addresses
		if !lines.Scan() {
			t.Fatal("it says no address")
		}
		address := regexp.MustCompile(`127\.0\.0\.1:\d+`).FindString(lines.Text())
		for range 150 {
			open, err := net.Dial("tcp", address)
			if err != nil {
				t.Fatalf("%s: %v", lines.Text(), err)
			}
			defer open.Close() //nolint:errcheck // of a test
			if _, err := open.Write([]byte("GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-a: ")); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := os.WriteFile("flooded", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for lines.Scan() {
		text.WriteString(lines.Text() + "\n")
	}
	if err := c.Wait(); err != nil || !strings.Contains(text.String(), "micro-batch 64 → 32") {
		t.Errorf("%v\n%s", err, text.String())
	}
}

// TestAddressThatIsTaken checks that nothing is started if a run cannot be served at the
// address that was asked for.
func TestAddressThatIsTaken(t *testing.T) {
	inEmptyFolder(t, "a.py", "open('ran', 'w')\n")
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close() //nolint:errcheck // of a test
	for address, want := range map[string]string{taken.Addr().String(): "address already in use", "here": "missing port", "127.0.0.1:http0": "unknown port"} {
		c := exec.Command("headroom", "run", "--web", "--metrics", address, "--", "python3", "a.py")
		said, err := c.CombinedOutput()
		if c.ProcessState.ExitCode() != 2 || !strings.Contains(string(said), "--metrics "+address) || !strings.Contains(string(said), want) ||
			!strings.Contains(string(said), "allowed: an address of this machine") || !strings.Contains(string(said), "hint: for example --metrics 127.0.0.1:") {
			t.Errorf("%s: %v\n%s", address, err, said)
		}
	}
	for _, left := range []string{"ran", "runs"} {
		if _, err := os.Stat(left); err == nil {
			t.Errorf("%s was made", left)
		}
	}
}

// TestTrained checks the words for what a configuration trains. For each kind of model and data,
// they must name only settings that apply to it.
func TestTrained(t *testing.T) {
	for _, c := range []struct {
		preset string
		set    []string
		want   string
	}{
		{"gpt", nil, "gpt: 2 layers of width 64, context 64; data: text from goroot; adamw, learning rate 0.003, effective batch 32"},
		{"gpt", []string{"data.path=corpus", "optimizer.kind=sgd"}, "gpt: 2 layers of width 64, context 64; data: text from corpus; sgd, learning rate 0.003, effective batch 32"},
		{"mlp-tight", nil, "mlp: 4 layers of width 128; data: blobs; adamw, learning rate 0.001, effective batch 512"},
		{"mnist", nil, "mlp: 2 layers of width 256; data: idx from /usr/share/datasets/fashion-mnist; adamw, learning rate 0.001, effective batch 256"},
	} {
		cfg, err := configs.Load(c.preset, c.set)
		if err != nil {
			t.Fatal(err)
		}
		if got := trained(cfg); got != c.want {
			t.Errorf("%s %v: %q, want %q", c.preset, c.set, got, c.want)
		}
	}
}

// TestReportOfAllRuns checks that headroom report without a name writes a page about all runs,
// and also the page of each run.
func TestReportOfAllRuns(t *testing.T) {
	inEmptyFolder(t, "a.py", "import sys\nsys.exit(int(sys.argv[1]))\n")
	if said, err := exec.Command("headroom", "report").CombinedOutput(); err == nil || !strings.Contains(string(said), "hint: headroom run -- COMMAND starts one") {
		t.Errorf("%v\n%s", err, said)
	}
	for _, status := range []string{"0", "3"} {
		_ = exec.Command("headroom", "run", "--", "python3", "a.py", status).Run() // one of them is meant to fail
	}
	out, err := exec.Command("headroom", "report", "--format", "md").Output()
	for _, want := range []string{"# 2 runs: 1 finished, 1 failed\n", "| a-run-2 | failed: exit status 3 ", "| a-run | finished |"} {
		if err != nil || !strings.Contains(string(out), want) {
			t.Errorf("%v: no %q in\n%s", err, want, out)
		}
	}
	if said, err := exec.Command("headroom", "report").CombinedOutput(); err != nil || string(said) != "headroom: report: runs/report.html\n" {
		t.Errorf("%v\n%s", err, said)
	}
	text, err := os.ReadFile(filepath.Join("runs", "report.html"))
	if err != nil {
		t.Fatal(err)
	}
	for _, link := range regexp.MustCompile(`href="([^"]*/[^"]*)"`).FindAllSubmatch(text, -1) {
		if _, err := os.Stat(filepath.Join("runs", string(link[1]))); err != nil {
			t.Error(err)
		}
	}
	if n := strings.Count(string(text), "/report.html"); n != 2 {
		t.Errorf("%d links", n)
	}
	page := filepath.Join("runs", "a-run", "report.html")
	before, err := os.Stat(page)
	if err != nil {
		t.Fatal(err)
	}
	if err := exec.Command("headroom", "report").Run(); err != nil {
		t.Fatal(err)
	}
	if after, err := os.Stat(page); err != nil || !after.ModTime().Equal(before.ModTime()) {
		t.Errorf("a report that was up to date was drawn again: %v", err)
	}
}
