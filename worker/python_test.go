package worker

import (
	"bufio"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"headroom/runs"
)

// TestReachesEveryPython starts Python in all the ways that people use, with the
// environment of an attempt. It checks that the worker attaches where it can, and that
// the script sees and prints the same as without headroom.
func TestReachesEveryPython(t *testing.T) {
	p := anyPython(t)
	venv := python{program: filepath.Join(t.TempDir(), "venv", "bin", "python")}
	if out, err := exec.Command(p.program, "-m", "venv", "--without-pip", filepath.Dir(filepath.Dir(venv.program))).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	train := script("train.py")
	safePath := exec.Command(p.program, "-P", "-c", "").Run() == nil // from Python 3.11 on
	for name, c := range map[string]struct {
		python
		words []string
		left  bool // left out: no worker attaches
		skip  bool
	}{
		"plain":                       {p, []string{train, "--a", "b c"}, false, false},
		"without the user's folder":   {p, []string{"-s", train}, false, false},
		"with a safe path":            {p, []string{"-P", train}, false, !safePath},
		"optimised":                   {p, []string{"-OO", train}, false, false},
		"a virtual environment":       {venv, []string{train}, false, false},
		"isolated":                    {p, []string{"-I", "-c", "print(1)"}, true, false},
		"without the environment":     {p, []string{"-E", "-c", "print(1)"}, true, false},
		"without site":                {p, []string{"-S", train}, true, false},
		"without torch":               {p, []string{"-c", "print(1)"}, true, false},
		"a look for torch":            {p, []string{"-c", "import importlib.util; print(type(importlib.util.find_spec('torch').loader))"}, true, false},
		"torch, and no step":          {p, []string{"-c", "import torch; print(type(torch.__loader__), torch.__loader__ is torch.__spec__.loader, vars(torch.__loader__))"}, true, false},
		"torch twice":                 {p, []string{"-c", "import torch, importlib; importlib.reload(torch); exec(open('" + train + "').read())"}, false, false},
		"an exception":                {p, []string{"-c", "import torch\nraise ValueError('mine')"}, true, false},
		"a status":                    {p, []string{"-c", "import torch, sys\nsys.exit(77)"}, true, false},
		"a torch that cannot be had":  {python{program: p.program, env: []string{"FAKE_TORCH_FAILS=1"}}, []string{train}, true, false},
		"killed":                      {p, []string{"-c", "import torch, os; os.kill(os.getpid(), 9)"}, true, false},
		"processes that load, forked": {p, []string{script("spawn.py"), "fork", "0"}, true, false},
		"processes, spawned":          {p, []string{script("spawn.py"), "spawn", "1"}, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if c.skip {
				t.Skip("SKIPPED: this Python has no -P")
			}
			b := &books{}
			l := begun(t, b, Armed)
			stub(t, l)
			bare, inside := c.run(t, nil, c.words...), c.run(t, l, c.words...)
			seen := ended(t, l)
			if bare != inside {
				t.Errorf("without:\n%+v\nwith:\n%+v", bare, inside)
			}
			said := b.texts(runs.KindWorker)
			if seen.Attached == c.left || len(said) != map[bool]int{false: 1, true: 0}[c.left] || seen.Failed != "" {
				t.Errorf("%+v, %q", seen, said)
			}
		})
	}
}

// TestForkHasItsOwnWire checks that a forked child never uses its parent's
// connection. A child that does not train opens none, and a child that trains says
// hello itself.
func TestForkHasItsOwnWire(t *testing.T) {
	b := &books{}
	l := begun(t, b, Armed)
	stub(t, l)
	if got := anyPython(t).run(t, l, script("fork.py")); got.status != 0 {
		t.Fatalf("%+v", got)
	}
	ended(t, l)
	if said := b.texts(runs.KindWorker); len(said) != 1 || strings.Contains(said[0], "child") {
		t.Errorf("%q", said)
	}
}

// TestUsersOwnSitecustomize checks that the user's own sitecustomize runs as it would without
// headroom, whatever that module does.
func TestUsersOwnSitecustomize(t *testing.T) {
	for name, text := range map[string]string{
		"speaks":           "import sys; print('mine', __name__, __file__, sys.modules[__name__].__file__)",
		"changes the path": "import sys; sys.path.append('/nowhere'); print([p for p in sys.path if 'headroom' not in p])",
		"fails":            "raise ValueError('mine')",
		"cannot import":    "import no_such_module",
		"imports torch":    "import torch; print(torch.__version__)",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			if err := os.WriteFile(filepath.Join(dir, "sitecustomize.py"), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			b := &books{}
			l := begun(t, b, Armed)
			stub(t, l)
			p := anyPython(t)
			p.path = []string{dir}
			if bare, inside := p.run(t, nil, script("train.py")), p.run(t, l, script("train.py")); bare != inside {
				t.Errorf("without:\n%+v\nwith:\n%+v", bare, inside)
			}
			if seen := ended(t, l); !seen.Attached {
				t.Errorf("%+v", seen)
			}
		})
	}
}

// TestUsersOwnNames checks that every import of the user's finds what it finds without headroom,
// modules called headroom, headroom_train and sitecustomize included.
func TestUsersOwnNames(t *testing.T) {
	p := anyPython(t)
	for _, name := range []string{"headroom", "headroom_train", "sitecustomize", "_torch", "wire"} {
		for _, there := range []bool{true, false} {
			t.Run(fmt.Sprint(name, " ", there), func(t *testing.T) {
				dir := t.TempDir()
				train := filepath.Join(dir, "train.py")
				texts := map[string]string{train: "import sys, torch\nfrom torch.optim.optimizer import Optimizer\nOptimizer().step()\ntry:\n    import " + name +
					"\n    print(" + name + ".mine, " + name + ".__file__)\nexcept ImportError as e:\n    print(e)\nprint(sys.path, 'sitecustomize' in sys.modules)\n"}
				if there {
					texts[filepath.Join(dir, name+".py")] = "mine = 1"
				} else if name == "headroom_train" {
					t.Skip("ours is the one to be found")
				}
				for file, text := range texts {
					if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
						t.Fatal(err)
					}
				}
				l := begun(t, &books{}, Armed)
				stub(t, l)
				if bare, inside := p.run(t, nil, train), p.run(t, l, train); bare != inside || bare.status != 0 {
					t.Errorf("without:\n%+v\nwith:\n%+v", bare, inside)
				}
				taken := name == "headroom_train"
				if seen := ended(t, l); seen.Attached == taken || (seen.Failed != "") != taken || taken && seen.Failed != "another module is called headroom_train" {
					t.Errorf("%+v", seen)
				}
			})
		}
	}
}

// TestPackageForScripts checks that a script can import the package under headroom, although the
// package's folder is not in sys.path.
func TestPackageForScripts(t *testing.T) {
	p := anyPython(t)
	l := begun(t, &books{}, Armed)
	stub(t, l)
	got := p.run(t, l, "-c", "import sys, headroom_train, headroom_train.wire as w\nprint(headroom_train.__version__, headroom_train.attach(), any(p and w.__file__.startswith(p) for p in sys.path))")
	if got.status != 0 || got.out != "1.2.3 True False\n" {
		t.Errorf("%+v", got)
	}
	ended(t, l)
}

// TestWorkerThatCannotStart checks that the command continues if the worker cannot start,
// and that the attempt reports the reason.
func TestWorkerThatCannotStart(t *testing.T) {
	for _, text := range []string{"syntax error", "def install(): raise RuntimeError('no')", "import no_such_module"} {
		l := begun(t, &books{}, Armed)
		if err := os.WriteFile(filepath.Join(l.folder.inject(), "headroom_train", "_torch.py"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		p := anyPython(t)
		if bare, inside := p.run(t, nil, script("train.py")), p.run(t, l, script("train.py")); bare != inside || bare.status != 0 {
			t.Errorf("without:\n%+v\nwith:\n%+v", bare, inside)
		}
		if seen := ended(t, l); seen.Attached || !seen.Torch || seen.Failed == "" {
			t.Errorf("%+v", seen)
		}
	}
}

// TestModule starts programs with python -m headroom_train, and checks that a program's
// arguments, folder and name are the same as without it.
func TestModule(t *testing.T) {
	p := anyPython(t)
	dir := t.TempDir()
	text := "import sys, torch\nfrom torch.optim.optimizer import Optimizer\nOptimizer().step()\nprint(sys.argv, __name__, __file__, sys.path[0])\nsys.exit(3)\n"
	for _, name := range []string{"program.py", "pack/__main__.py", "pack/__init__.py"} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700); err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(name, "__init__.py") {
			text = ""
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	p.path = []string{dir}
	for _, words := range [][]string{{filepath.Join(dir, "program.py"), "-x", "y"}, {"-m", "pack", "z"}, {"-m", "program"}} {
		b := &books{}
		l := begun(t, b, Armed)
		stub(t, l)
		bare := p.run(t, nil, words...)
		if inside := p.run(t, l, append([]string{"-m", "headroom_train"}, words...)...); bare != inside || bare.status != 3 {
			t.Errorf("without:\n%+v\nwith:\n%+v", bare, inside)
		}
		if seen := ended(t, l); !seen.Attached || len(b.texts(runs.KindWorker)) != 1 {
			t.Errorf("%+v", seen)
		}
	}
}

// TestModuleIsNoProgram checks that a command of headroom's after python -m headroom_train is taken for one, unless there is
// a file of this name, and that a package that came without the program says so.
func TestModuleIsNoProgram(t *testing.T) {
	p := anyPython(t)
	t.Chdir(t.TempDir())
	if err := os.WriteFile("check", []byte("print('a script')\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir("run", 0o700); err != nil { // no script
		t.Fatal(err)
	}
	const says = "headroom: no program came with this copy of headroom_train; pip install headroom-train installs both\n"
	for name, want := range map[string]said{"run": {err: says, status: 1}, "check": {out: "a script\n"}} {
		l := begun(t, &books{}, Armed)
		if got := p.run(t, l, "-m", "headroom_train", name); got != want {
			t.Errorf("%s: %+v", name, got)
		}
		ended(t, l)
	}
}

// TestHarnessGoes checks that a process continues without a long wait once its headroom is gone.
func TestHarnessGoes(t *testing.T) {
	p := anyPython(t)
	l := begun(t, &books{pieces: 6}, Armed)
	c := exec.Command(p.program, script("alone.py"))
	c.Env = l.Env(os.Environ())
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var errs strings.Builder
	c.Stderr = &errs
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Process.Kill() }()
	lines := bufio.NewScanner(out)
	if !lines.Scan() || lines.Text() != "plan armed 6" {
		t.Fatalf("%q", lines.Text())
	}
	l.mu.Lock()
	for t := range l.talks {
		_ = t.conn.SetReadDeadline(time.Now()) // this ends the connection, as headroom's death would
	}
	l.mu.Unlock()
	if seen := ended(t, l); !seen.Attached {
		t.Errorf("%+v", seen)
	}
	_, _ = io.WriteString(in, "\n")
	if !lines.Scan() || lines.Text() != "alone True True" {
		t.Errorf("%q", lines.Text())
	}
	if err := c.Wait(); err != nil || errs.String() != "headroom: headroom is gone\n" {
		t.Errorf("%v\n%s", err, errs.String())
	}
}

// TestRealTorch checks that a process that trains with the real torch says hello.
func TestRealTorch(t *testing.T) {
	path := pythonWithTorch(t)
	b := &books{}
	l := begun(t, b, Armed)
	c := exec.Command(path, "-c", `
import torch
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    optimizer.zero_grad()
    model(torch.ones(8, 4)).sum().backward()
    optimizer.step()
print(torch.__version__)
`)
	c.Env = l.Env(os.Environ())
	out, err := c.Output()
	if err != nil {
		t.Fatal(err)
	}
	seen := ended(t, l)
	version := strings.TrimSpace(string(out))
	if said := b.texts(runs.KindWorker); !seen.Attached || len(said) == 0 || !strings.Contains(said[0], fmt.Sprintf("torch %s, armed)", version)) {
		t.Errorf("%+v, %q, torch %s", seen, said, version)
	}
}

// TestSaysThatItOnlyWatches checks that a process in which the worker does nothing, a check of one
// of several ranks, leaves the reason if it ends before its first step.
func TestSaysThatItOnlyWatches(t *testing.T) {
	path := pythonWithTorch(t)
	for world, want := range map[string]string{"2": "a check looks at one rank, and the others would wait for it", "1": ""} {
		l := begun(t, &books{}, Check)
		c := exec.Command(path, "-c", "import torch")
		c.Env = append(l.Env(os.Environ()), "WORLD_SIZE="+world)
		if out, err := c.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		if seen := ended(t, l); seen.Attached || !seen.Torch || seen.Watches != want || seen.Failed != "" {
			t.Errorf("%s ranks: %+v", world, seen)
		}
	}
}

// TestNextAttemptBegins checks that an attempt begins with the limit that the previous attempt
// settled on, so that no failure is needed first.
func TestNextAttemptBegins(t *testing.T) {
	path := pythonWithTorch(t)
	b := &books{pieces: 12}
	l := begun(t, b, Armed)
	c := exec.Command(path, filepath.Join("testdata", "cases", "limited.py"), "40", "0")
	c.Env = append(l.Env(os.Environ()), "OMP_NUM_THREADS=1")
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	seen := ended(t, l)
	if said := b.texts(runs.KindWorker); seen.Survived != 0 || !slices.Contains(said, "a batch of 40 rows runs in 4 pieces of at most 10") {
		t.Errorf("%+v, %q", seen, said)
	}
}

// TestRestartBegins checks that a rank that torchrun has started again, after a failure that is none of memory, begins with the
// limit that the rank before it settled on: memory runs out in the first start only.
func TestRestartBegins(t *testing.T) {
	path := pythonWithTorch(t)
	b := &books{}
	l := begun(t, b, Armed)
	c := exec.Command(path, "-m", "torch.distributed.run", "--nproc-per-node", "1", "--standalone", "--local-addr", "127.0.0.1", "--max-restarts", "1",
		filepath.Join("testdata", "cases", "restarted.py"), filepath.Join(t.TempDir(), "started"))
	c.Env = append(l.Env(os.Environ()), "OMP_NUM_THREADS=1", "GLOO_SOCKET_IFNAME=lo")
	out, err := c.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	seen, cut := ended(t, l), b.texts(runs.KindWorker)
	if seen.Survived != 1 || strings.Count(string(out), "start 2 ") != 6 || !slices.Contains(cut, "a batch of 40 rows runs in 4 pieces of at most 10") {
		t.Errorf("%+v, %q\n%s", seen, cut, out)
	}
}

// TestRay checks functions that Ray Train and Ray Tune run in threads of their own processes: each rank survives in place,
// and is known by the rank that Ray gives it. Those that FailureConfig starts again begin with the limit that the ranks
// before them settled on.
func TestRay(t *testing.T) {
	path, packages := pythonWithTorch(t), os.Getenv("HEADROOM_RAY")
	if packages == "" {
		t.Skip("SKIPPED: no Ray: make test-ray installs it and runs this test")
	}
	for how, ranks := range map[string]int{"train": 2, "tune": 1} {
		t.Run(how, func(t *testing.T) {
			folder, err := os.MkdirTemp("", "ray") // the path of a socket in it has to be short
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = os.RemoveAll(folder) }) // one of Ray's processes may still be ending
			b := &books{}
			l := begun(t, b, Armed)
			var out []byte
			for range 3 {
				c := exec.Command(path, filepath.Join("testdata", "cases", "restarted_ray.py"), how, folder)
				c.Env = l.Env(append(os.Environ(), "PYTHONPATH="+packages, "OMP_NUM_THREADS=1", "GLOO_SOCKET_IFNAME=lo",
					"RAY_TMPDIR="+folder, "RAY_AUTH_MODE=disabled", "RAY_USAGE_STATS_ENABLED=0", "RAY_DEDUP_LOGS=0", "RAY_COLOR_PREFIX=0"))
				out, err = c.CombinedOutput()
				if err == nil || !strings.Contains(string(out), "timed out during startup") { // after 30 s, on a busy machine
					break
				}
			}
			seen, cut := ended(t, l), b.texts(runs.KindWorker)
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			known := map[int]bool{}
			for _, s := range b.steps {
				known[s.Rank] = s.World == ranks || ranks == 1
			}
			for rank := range ranks {
				if line := fmt.Sprintf("start 2 rank %d step 5 ", rank); !known[rank] || !strings.Contains(string(out), line) {
					t.Errorf("no %q, or another world: %v", line, known)
				}
			}
			if seen.Survived != ranks || !slices.Contains(cut, "a batch of 40 rows runs in 4 pieces of at most 10") || t.Failed() {
				t.Errorf("%+v, %q\n%s", seen, cut, out)
			}
		})
	}
}

// BenchmarkStart measures how long a Python process that never imports torch takes to
// start, with and without the environment of an attempt.
func BenchmarkStart(b *testing.B) {
	p := anyPython(b)
	l := begun(b, &books{}, Armed)
	defer ended(b, l)
	for name, attempt := range map[string]*Attempt{"bare": nil, "inside": l} {
		b.Run(name, func(b *testing.B) {
			env := os.Environ()
			if attempt != nil {
				env = attempt.Env(env)
			}
			for b.Loop() {
				c := exec.Command(p.program, "-c", "")
				c.Env = env
				if err := c.Run(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// TestPythonIsFuzzed answers a process with random messages, and checks that the
// process neither raises an exception nor hangs.
func TestPythonIsFuzzed(t *testing.T) {
	temp, err := os.MkdirTemp("", "hw")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(temp) })
	listener, err := net.Listen("unix", filepath.Join(temp, "wire"))
	if err != nil {
		t.Fatal(err)
	}
	const rounds = 60
	random := rand.New(rand.NewPCG(1, 2))
	words := []string{`{"type":"plan","v":2,"mode":"armed","limit":3}`, `{"type":"plan","v":"1","limit":-3,"mode":7}`, `{"type":"plan"}`, `{"type":"stop"}`, `{"type":"look"}`,
		`{"type":"plan","v":2,"limit":"many"}`, `{"type":"plan","v":2,"limit":1e999}`, `{"type":"plan","v":2,"limit":true}`, `{"type":"plan","v":2,"limit":-1}`,
		`{"type":"heard","id":1}`, `{"type":"heard","id":"1"}`, `{"type":"tomorrow","rows":2}`, `[]`, `null`, `{}`, strings.Repeat("[", 100000), "\x00\xff\xfe", `{"type":{}}`, ""}
	answers := make([]string, rounds)
	for i := range answers {
		for range random.IntN(6) {
			answers[i] += words[random.IntN(len(words))] + "\n"
		}
		if random.IntN(4) == 0 {
			answers[i] = answers[i][:random.IntN(len(answers[i])+1)]
		}
	}
	answers[0] = strings.Repeat("x", 3*lineMost)
	var served sync.WaitGroup
	served.Go(func() {
		for _, text := range answers {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			served.Go(func() {
				_, _ = io.WriteString(c, text) // the process may not listen to the end
				_, _ = io.Copy(io.Discard, c)
				_ = c.Close()
			})
		}
	})
	l := begun(t, &books{}, Armed)
	got := anyPython(t).run(t, l, script("garbage.py"), fmt.Sprint(rounds), listener.Addr().String())
	_ = listener.Close()
	served.Wait()
	if ended(t, l); got.status != 0 || got.out != "done\n" || got.err != "" {
		t.Errorf("%+v", got)
	}
}

// TestLoaderWorkersSayNothing checks that the processes of a data loader, forked or
// spawned, do not connect to headroom.
func TestLoaderWorkersSayNothing(t *testing.T) {
	path := pythonWithTorch(t)
	train := filepath.Join(t.TempDir(), "loads.py")
	text := `
import sys
import torch

class Squares(torch.utils.data.Dataset):
    def __len__(self):
        return 16
    def __getitem__(self, i):
        return torch.full((4,), float(i * i))

if __name__ == "__main__":
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    loader = torch.utils.data.DataLoader(Squares(), batch_size=4, num_workers=2, multiprocessing_context=sys.argv[1])
    for epoch in range(2):
        for x in loader:
            optimizer.zero_grad()
            model(x).sum().backward()
            optimizer.step()
    print("trained")
`
	if err := os.WriteFile(train, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, how := range []string{"fork", "spawn"} {
		b := &books{}
		l := begun(t, b, Armed)
		c := exec.Command(path, train, how)
		// Without headroom too, Python's resource tracker sometimes warns about a semaphore that a
		// spawned loader has already removed.
		c.Env = append(l.Env(os.Environ()), "PYTHONWARNINGS=ignore:resource_tracker")
		out, err := c.CombinedOutput()
		if err != nil || string(out) != "trained\n" {
			t.Errorf("%v\n%s", err, out)
		}
		l.mu.Lock()
		reached := l.reached
		l.mu.Unlock()
		if seen := ended(t, l); !seen.Attached || len(b.texts(runs.KindWorker)) != 1 || reached != 1 {
			t.Errorf("%s: %d connections, %+v, %q", how, reached, seen, b.texts(runs.KindWorker))
		}
	}
}
