package main

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"headroom/memory"
	"headroom/runs"
)

// published returns the path of the folder with the packages that make published installs. If
// there is none, it skips the test, or fails it if HEADROOM_REQUIRE_TORCH is 1.
func published(t *testing.T) string {
	t.Helper()
	return installed(t, "HEADROOM_PUBLISHED", "make published", "no published packages: make published installs them for this test")
}

// publishedRun is what became of one run of a published command.
type publishedRun struct {
	losses []float64
	peak   memory.Bytes // of the data segment
	err    error
	said   []byte
}

// TestPublishedScripts runs training commands that come with PyPI packages, as they are, in a
// part of the memory that each takes beyond PyTorch's own. Bare, each must die; under headroom,
// each must end in place, with all of its steps and the losses that it has with room.
func TestPublishedScripts(t *testing.T) {
	const part = 0.6
	python, packages := pythonWithTorch(t), published(t)
	helper, err := filepath.Abs(filepath.Join("..", "..", "wrap", "testdata", "published", "litgpt_model.py"))
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(t.TempDir())
	run := func(t *testing.T, limit memory.Bytes, losses *regexp.Regexp, words ...string) (r publishedRun) {
		t.Helper()
		c := limited(16<<20, words...)
		if limit > 0 {
			c = limited(int(limit>>10), words...)
		}
		// Large blocks are mapped and given back, so that the limit is on what is in use.
		c.Env = append(c.Env, "PYTHONPATH="+packages, "MALLOC_MMAP_THRESHOLD_=262144", "MALLOC_TRIM_THRESHOLD_=262144", "HF_HUB_OFFLINE=1", "GORACE=atexit_sleep_ms=0")
		log, err := os.Create("said.log")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = log.Close() }() // only read below
		c.Stdout, c.Stderr = log, log
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- c.Wait() }()
		for tick := time.NewTicker(10 * time.Millisecond); ; {
			select {
			case r.err = <-ended:
				tick.Stop()
				if r.said, err = os.ReadFile("said.log"); err != nil {
					t.Fatal(err)
				}
				for _, found := range losses.FindAllSubmatch(r.said, -1) {
					loss, err := strconv.ParseFloat(string(found[1]), 64)
					if err != nil {
						t.Fatal(err)
					}
					r.losses = append(r.losses, loss)
				}
				return r
			case <-tick.C:
				r.peak = max(r.peak, dataOf(c.Process.Pid))
			}
		}
	}

	prepare := func(words ...string) {
		t.Helper()
		if r := run(t, 0, regexp.MustCompile("(never)"), append([]string{python}, words...)...); r.err != nil {
			t.Fatalf("%v\n%s", r.err, r.said)
		}
	}
	if err := os.WriteFile("corpus", corpus(192), 0o600); err != nil {
		t.Fatal(err)
	}
	prepare(filepath.Join(packages, "bin", "bert-vocab"), "-c", "corpus", "-o", "vocab")
	prepare(helper, "model")
	imports := run(t, 0, regexp.MustCompile("(never)"), python, "-c", "import torch").peak

	litgpt := func(method string) []string {
		return strings.Fields("-m litgpt " + method + " model --data JSON --data.json_path model/data.json --data.val_split_fraction 0.05 --data.num_workers 0" +
			" --out_dir out --precision 32-true --devices 1 --train.micro_batch_size 32 --train.global_batch_size 32 --train.max_steps 3 --train.max_seq_length 256" +
			" --train.log_interval 1 --eval.initial_validation false --eval.final_validation false --eval.interval 100")
	}
	for _, c := range []struct {
		name    string
		command []string
		losses  string
		seeded  bool
		way     runs.Way
	}{
		{"litgpt-finetune-full", litgpt("finetune_full"), `loss train: ([\d.]+)`, true, runs.WayTwoPass},
		{"litgpt-finetune-lora", litgpt("finetune_lora"), `loss train: ([\d.]+)`, true, runs.WayPieces},
		{"bert-pytorch", append([]string{filepath.Join(packages, "bin", "bert")}, strings.Fields("-c corpus -v vocab -o bert.model -e 1 --log_freq 1 -w 0 -hs 128 -l 4 -a 4 -s 40 -b 64")...),
			`'loss': ([\d.]+)`, false, runs.WayPieces},
	} {
		t.Run(c.name, func(t *testing.T) {
			losses, words := regexp.MustCompile(c.losses), append([]string{python}, c.command...)
			whole := run(t, 0, losses, words...)
			if whole.err != nil || len(whole.losses) != 3 {
				t.Fatalf("with room: %v, %v\n%s", whole.err, whole.losses, whole.said)
			}
			limit := imports + memory.Bytes(part*float64(whole.peak-imports))
			if bare := run(t, limit, losses, words...); bare.err == nil {
				t.Fatalf("bare, it needs no more than %v of %v: %v\n%s", limit, whole.peak, bare.losses, bare.said)
			}
			got := run(t, limit, losses, append([]string{"headroom", "run", "--name", c.name, "--"}, words...)...)
			if got.err != nil || len(got.losses) != len(whole.losses) {
				t.Fatalf("within %v of %v: %v, %v\n%s", limit, whole.peak, got.err, got.losses, withErrorsFirst(got.said))
			}
			for i, want := range whole.losses {
				if c.seeded && math.Abs(got.losses[i]-want) > 1e-3*want {
					t.Errorf("step %d: loss %v, with room %v", i+1, got.losses[i], want)
				}
			}
			entries, err := runs.ReadJournal(filepath.Join("runs", c.name))
			if err != nil {
				t.Fatal(err)
			}
			ways := map[runs.Way]int{}
			for _, e := range entries {
				if e.InPlace != nil {
					ways[e.InPlace.Way]++
				}
				if e.Attempt > 1 || e.Kind == runs.KindOOM || e.Kind == runs.KindRefused {
					t.Errorf("%+v", e)
				}
			}
			if ways[c.way] == 0 {
				t.Errorf("survived by %v, want %s\n%s", ways, c.way, withErrorsFirst(got.said))
			}
		})
	}
}

// dataOf returns the size of the data segment of a process, 0 if it has ended.
func dataOf(pid int) memory.Bytes {
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	_, rest, _ := strings.Cut(string(status), "VmData:")
	var kib memory.Bytes
	_, _ = fmt.Sscan(rest, &kib)
	return kib << 10
}

// corpus returns pairs of sentences, each pair in a line.
func corpus(pairs int) []byte {
	random, text := rand.New(rand.NewPCG(0, 0)), []byte(nil)
	sentence := func(end string) {
		words := make([]string, 20)
		for i := range words {
			words[i] = fmt.Sprintf("w%d", random.IntN(300))
		}
		text = append(text, strings.Join(words, " ")+end...)
	}
	for range pairs {
		sentence("\t")
		sentence("\n")
	}
	return text
}
