package main

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"headroom/job"
	"headroom/memory"
	"headroom/recovery"
	"headroom/worker"
)

// exactly is limited for a process whose limit must not move with what it has freed.
func exactly(kib int, words ...string) *exec.Cmd {
	c := limited(kib, words...)
	c.Env = append(c.Env, "MALLOC_MMAP_THRESHOLD_=65536")
	return c
}

// answered returns what headroom find answers, as it is and as it was printed. args are its flags and the command; kib is as for [exactly].
func answered(t *testing.T, kib int, args ...string) (f foundRows, out []byte) {
	t.Helper()
	c := exactly(kib, append([]string{"headroom", "find", "--json", "-q"}, args...)...)
	var said strings.Builder
	c.Stderr = &said
	out, err := c.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, said.String())
	}
	if err := json.Unmarshal(out, &f); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return f, out
}

// TestFindsRows finds the largest batch of four loops in one process each, and compares it with what a fresh process
// can train on for three steps: the size that is found, and not one that is 5 % larger. No file is written.
func TestFindsRows(t *testing.T) {
	python := pythonWithTorch(t)
	script, err := filepath.Abs(filepath.Join("testdata", "find", "train.py"))
	if err != nil {
		t.Fatal(err)
	}
	const kib = 1_400_000
	fits := func(kind string, rows int) bool {
		c := exactly(kib, python, script, kind, strconv.Itoa(rows), "3")
		said, err := c.CombinedOutput()
		if err != nil && !strings.Contains(string(said), "allocate memory") {
			t.Fatalf("%d rows: %v\n%s", rows, err, said)
		}
		return err == nil
	}
	for _, c := range []struct{ kind, rows string }{{"function", "6"}, {"language", "6"}, {"batchnorm", "6"}, {"accumulated", "6"}, {"language", "300"}} {
		kind := c.kind
		t.Run(kind+c.rows, func(t *testing.T) {
			t.Chdir(t.TempDir())
			own, err := strconv.Atoi(c.rows)
			if err != nil {
				t.Fatal(err)
			}
			args := []string{"--", python, script, kind, c.rows, "1000"}
			evaluates := kind == "language" && own == 6
			if evaluates {
				args = slices.Insert(args, 0, "--evaluation")
			}
			f, out := answered(t, kib, args...)
			if left, err := os.ReadDir("."); err != nil || len(left) > 0 {
				t.Errorf("%v is left behind, %v", left, err)
			}
			effective := map[bool]int{false: own, true: 2 * own}[kind == "accumulated"]
			if f.Rows != own || f.Effective != effective || own == 6 && f.Recommended.Micro != effective || len(f.Tried) > 6 || f.Line.PerSample <= 0 || f.Weights <= 0 {
				t.Errorf("%s", out)
			}
			if uncut := map[string]string{"batchnorm": "BatchNorm2d computes statistics over the batch"}[kind]; f.Uncut != uncut {
				t.Errorf("pieces: %q, want %q", f.Uncut, uncut)
			}
			more := f.Largest + f.Largest*5/100 + 1
			if !fits(kind, f.Largest) || fits(kind, more) {
				t.Errorf("%d was found, and is not between %d and what fits\n%s", f.Largest, more, out)
			}
			if !evaluates {
				if f.Evaluation != nil {
					t.Errorf("%+v was not asked for", f.Evaluation)
				}
				return
			}
			if e := f.Evaluation; e == nil || e.Largest <= f.Largest || !fits("evaluated", e.Largest) || fits("evaluated", e.Largest+e.Largest*9/100+1) {
				t.Errorf("%+v is not about the largest batch of an evaluation", e)
			}
		})
	}
}

// TestFindsRowsOfTheLargestBatch compares what is found with --look for a script whose batches have different lengths with what a
// fresh process can train on whose batches are all as long as the longest.
func TestFindsRowsOfTheLargestBatch(t *testing.T) {
	python := pythonWithTorch(t)
	script, err := filepath.Abs(filepath.Join("testdata", "find", "train.py"))
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(t.TempDir())
	const kib = 1_400_000
	f, _ := answered(t, kib, "--look", "20", "--", python, script, "lengths", "6", "1000")
	want := worker.Length{Tensor: "tensor 1", Dim: 1, Least: 8, Most: 64, First: 8, Used: 64, Each: 64}
	if f.Batches.Read != 20 || !slices.Equal(f.Batches.Lengths, []worker.Length{want}) {
		t.Errorf("%+v", f.Batches)
	}
	for _, rows := range []int{f.Largest, f.Largest + f.Largest*5/100 + 1} {
		said, err := exactly(kib, python, script, "longest", strconv.Itoa(rows), "3").CombinedOutput()
		if err != nil && !strings.Contains(string(said), "allocate memory") {
			t.Fatalf("%d rows: %v\n%s", rows, err, said)
		}
		if (err == nil) != (rows == f.Largest) {
			t.Errorf("%d were found, but of %d it is %t that they fit", f.Largest, rows, err == nil)
		}
	}
}

// TestWritesBatches checks what is said of the rows that were tried.
func TestWritesBatches(t *testing.T) {
	length := worker.Length{Tensor: "input_ids", Dim: 1, Least: 96, Most: 512, First: 128}
	longest, shorter := length, length
	longest.Used, longest.Each, shorter.Used = 512, 512, 480
	for name, c := range map[string]struct {
		seen worker.Batches
		want string
	}{
		"nothing was seen": {worker.Batches{}, ""},
		"nothing differs":  {worker.Batches{Read: 2, Tensors: true}, ""},
		"not looked":       {worker.Batches{Read: 2, Tensors: true, Lengths: []worker.Length{length}}, "The rows are those of the first step, and later ones may be larger. --look 200 tries the largest of 200 batches.\n  input_ids: 96 to 512 in dimension 1, 128 in the first batch\n"},
		"the longest":      {worker.Batches{Look: 200, Read: 200, Tensors: true, Lengths: []worker.Length{longest}}, "Looked at 200 batches of the loader: the rows are those of the largest.\n  input_ids: 96 to 512 in dimension 1, 128 in the first batch; tried on 512, so that 32 rows are 16,384 elements\n"},
		"not the longest":  {worker.Batches{Look: 200, Read: 1, Tensors: true, Lengths: []worker.Length{shorter}}, "Looked at 1 batch of the loader: the rows are those of the largest.\n  input_ids: 96 to 512 in dimension 1, 128 in the first batch; tried on 480\n"},
		"all alike":        {worker.Batches{Look: 2000, Read: 2000, Tensors: true}, "Looked at 2,000 batches of the loader: all rows have the same shape.\n"},
		"other tensors":    {worker.Batches{Look: 2, Read: 2, Tensors: true, Differ: true}, "Looked at 2 batches of the loader: the rows are those of the largest.\n  Batches differ in which tensors they have.\n"},
		"texts":            {worker.Batches{Look: 2, Read: 2}, "Looked at 2 batches of the loader: they have no tensors, so that none is known to be the largest. The rows are those of the first step.\n"},
		"no loader":        {worker.Batches{Look: 2}, "No batch of a DataLoader was looked at: the script reads none before its first step. The rows are those of the first step.\n"},
	} {
		var b strings.Builder
		foundRows{FoundRows: job.FoundRows{Largest: 32, Batches: c.seen}}.writeBatches(&b)
		if b.String() != c.want {
			t.Errorf("%s: %s", name, b.String())
		}
	}
}

// TestWritesLevers checks what is said of what would make room for more rows.
func TestWritesLevers(t *testing.T) {
	f := foundRows{FoundRows: job.FoundRows{Levers: []job.Lever{{Rows: 1200, What: "do this", Frees: memory.GiB, Of: "are in the way"}, {Rows: 3, What: "or that", Frees: memory.MiB, Of: "too"}}}}
	if said := f.String(); !strings.Contains(said, "More rows, estimated from what was measured:\n  about 1,200: do this (1 GiB are in the way)\n  about 3: or that (1 MiB too)\n") {
		t.Error(said)
	}
	f.Levers = nil
	if said := f.String(); strings.Contains(said, "estimated") {
		t.Error(said)
	}
}

// TestFindsRowsOfRanks finds the largest batch of two ranks, of which one has less room, and compares it with what they can train on for
// three steps; and checks the reason where their steps cannot be made by each rank alone.
func TestFindsRowsOfRanks(t *testing.T) {
	python := pythonWithTorch(t)
	script, err := filepath.Abs(filepath.Join("testdata", "find", "ranks.py"))
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(t.TempDir())
	const kib = 1_700_000
	trained := func(kind string, rows int) []string {
		return []string{python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", script, kind, strconv.Itoa(rows), "3"}
	}
	f, out := answered(t, kib, append([]string{"--"}, trained("together", 6)...)...)
	if want := (recovery.Plan{Effective: 12, World: 2, Micro: 6}); f.World != 2 || f.Effective != 12 || f.Recommended != want {
		t.Errorf("%s", out)
	}
	for _, rows := range []int{f.Largest, f.Largest + f.Largest*6/100 + 1} {
		said, err := exactly(kib, trained("together", rows)...).CombinedOutput()
		if err != nil && !strings.Contains(string(said), "allocate memory") {
			t.Fatalf("%d rows: %v\n%s", rows, err, said)
		}
		if (err == nil) != (rows == f.Largest) {
			t.Errorf("%d were found, but of %d it is %t that they fit", f.Largest, rows, err == nil)
		}
	}
	for kind, want := range map[string]string{"alone": "several ranks train a Sequential that is not inside DistributedDataParallel", "zero": "the optimizer's step communicates with other ranks"} {
		said, err := exactly(kib, append([]string{"headroom", "find", "--"}, trained(kind, 6)...)...).CombinedOutput()
		if err == nil || !strings.Contains(string(said), "the step cannot be tried on other numbers of rows: "+want) {
			t.Errorf("%s: %v\n%s", kind, err, said)
		}
	}
}

// TestFindsRowsElsewhere compares what is found for less memory and for more with what a fresh process can train on there.
func TestFindsRowsElsewhere(t *testing.T) {
	python := pythonWithTorch(t)
	script, err := filepath.Abs(filepath.Join("testdata", "find", "train.py"))
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(t.TempDir())
	f, out := answered(t, 1_400_000, "--for", "1GiB,2GiB,1MiB", "--", python, script, "function", "6", "1000")
	if len(f.Elsewhere) != 3 {
		t.Fatalf("%s", out)
	}
	if none := f.Elsewhere[2]; none.Largest != 0 || none.Why == "" {
		t.Errorf("%+v", none)
	}
	for i, kib := range []int{1 << 20, 2 << 20} {
		found := f.Elsewhere[i]
		if found.Estimated != (i == 1) || found.Memory != memory.Bytes(kib)<<10 || found.Recommended.Micro != 6 {
			t.Errorf("%+v", found)
		}
		for _, rows := range []int{found.Largest, found.Largest + found.Largest*6/100 + 1} {
			said, err := exactly(kib, python, script, "function", strconv.Itoa(rows), "3").CombinedOutput()
			if err != nil && !strings.Contains(string(said), "allocate memory") {
				t.Fatalf("%d rows: %v\n%s", rows, err, said)
			}
			if (err == nil) != (rows == found.Largest) {
				t.Errorf("%d were found for %s, but of %d it is %t that they fit", found.Largest, found.Name, rows, err == nil)
			}
		}
	}
}

// TestCardsAreInTheDocs checks that docs/find.md has the name of every card.
func TestCardsAreInTheDocs(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "find.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range memory.CardNames() {
		if !strings.Contains(string(text), "`"+name+"`") {
			t.Errorf("%s is not there", name)
		}
	}
}

// TestWritesRowsElsewhere checks the table of other memories, and that it is left out where it would repeat the answer.
func TestWritesRowsElsewhere(t *testing.T) {
	plan := recovery.Plan{Effective: 64, World: 1, Micro: 16}
	f := foundRows{FoundRows: job.FoundRows{Rows: 64, Effective: 64, Recommended: plan, Available: memory.GiB, Elsewhere: []job.RowsElsewhere{
		{Name: "1GiB", Memory: memory.GiB, Available: memory.GiB, Largest: 20, Recommended: plan}}}}
	if said := f.String(); strings.Contains(said, "largest") {
		t.Error(said)
	}
	f.table = true
	f.Elsewhere = append(f.Elsewhere, job.RowsElsewhere{Name: "a100-40", Memory: 40 * memory.GiB, Largest: 800, Recommended: plan, Estimated: true},
		job.RowsElsewhere{Name: "t4", Memory: 14 * memory.GiB, Why: "it is not known"})
	const want = "" +
		"    for      memory   largest       use\n" +
		"   1GiB       1 GiB        20        16\n" +
		"a100-40      40 GiB       800        16  estimated\n" +
		"     t4      14 GiB  it is not known\n" +
		"Estimated from the line of what was measured here, in 1 GiB. What is not estimated was run, within that much memory of this device.\n"
	if said := f.String(); !strings.Contains(said, want) {
		t.Error(said)
	}
}

// TestFindsRowsThatDependOnEachOther checks that nobody is told to train such rows in pieces.
func TestFindsRowsThatDependOnEachOther(t *testing.T) {
	plan := recovery.Plan{Effective: 64, World: 1, Micro: 16}
	f := foundRows{FoundRows: job.FoundRows{Rows: 64, Effective: 64, Recommended: plan}}
	const pieces, apart = "trains its 64 rows in pieces", "Smaller micro-batches are not known to add up to the same step: rows are compared. They may train differently."
	if said := f.String(); !strings.Contains(said, pieces) || strings.Contains(said, "not known") {
		t.Error(said)
	}
	f.Uncut = "rows are compared"
	if said := f.String(); strings.Contains(said, pieces) || !strings.Contains(said, apart) {
		t.Error(said)
	}
}

// TestRunsWithWhatIsFound checks that a run with --micro auto makes its first step in pieces that fit, and runs out of memory nowhere;
// that a second run needs no trial; and that a run goes on where nothing can be found, or nothing can be cut.
func TestRunsWithWhatIsFound(t *testing.T) {
	python := pythonWithTorch(t)
	script, err := filepath.Abs(filepath.Join("testdata", "find", "train.py"))
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(t.TempDir())
	t.Setenv("HEADROOM_RUNS_DIR", filepath.Join(t.TempDir(), "runs"))
	run := func(name, micro, kind, rows string) (said, journal string) {
		t.Helper()
		out, err := exactly(1_400_000, "headroom", "run", "--name", name, "--micro", micro, "--", python, script, kind, rows, "2").CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", name, err, out)
		}
		text, err := os.ReadFile(filepath.Join(os.Getenv("HEADROOM_RUNS_DIR"), name, "journal.jsonl"))
		if err != nil {
			t.Fatal(err)
		}
		return string(out), string(text)
	}
	contains := func(name, text string, wanted ...string) {
		t.Helper()
		for _, want := range wanted {
			if !strings.Contains(text, want) {
				t.Errorf("%s: there is no %q in\n%s", name, want, text)
			}
		}
	}
	const pieces = "batches of 1000 rows are run in pieces of at most "
	for _, name := range []string{"first", "second"} {
		said, journal := run(name, "auto", "function", "1000")
		contains(name, said, "headroom: --micro auto: "+pieces)
		contains(name, journal, "--micro auto: "+pieces, "a batch of 1000 rows runs in ")
		for _, never := range []string{`"survived"`, `"oom"`, `"warning"`} {
			if strings.Contains(journal, never) {
				t.Errorf("%s: %s in\n%s", name, never, journal)
			}
		}
		trial := strings.Contains(said, "the command is started once more")
		if reused := strings.Contains(said, "(found by "); trial == reused || reused != (name == "second") {
			t.Errorf("%s: a trial %t, reused %t:\n%s", name, trial, reused, said)
		}
	}
	if steps, err := os.ReadFile("steps"); err != nil || strings.Count(string(steps), "\n") != 4 {
		t.Errorf("two runs of two steps made %q, %v", steps, err)
	}
	said, _ := run("whole", "auto", "batchnorm", "12")
	contains("whole", said, "--micro auto: a batch of 12 rows fits as a whole")
	said, _ = run("none", "auto", "contrastive", "12")
	contains("none", said, "headroom: warning: --micro auto: a tensor of 10×12 from outside", "; the run goes on as without it")
	said, journal := run("asked", "5", "function", "12")
	if said != "" {
		t.Errorf("asked: %s", said)
	}
	contains("asked", journal, "a batch of 12 rows runs in 3 pieces of at most 4")
	said, _ = run("uncut", "5", "batchnorm", "12")
	contains("uncut", said, "this step is run whole, although smaller pieces were asked for: BatchNorm2d computes statistics over the batch")
}

// TestFindsNoRows checks that find says why a step cannot be tried on other numbers of rows.
func TestFindsNoRows(t *testing.T) {
	python := pythonWithTorch(t)
	script, err := filepath.Abs(filepath.Join("testdata", "find", "train.py"))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ kind, steps, says string }{
		{"closure", "10", "the step cannot be tried on other numbers of rows: the optimizer's step is given a function, which computes the gradients\n"},
		{"contrastive", "10", "the step cannot be tried on other numbers of rows: a tensor of 10×6 from outside the step may have the rows of its batch there\n"},
		{"function", "0", "the step cannot be tried on other numbers of rows: the command exited with status 0, and the worker was not attached: torch was imported, but no optimizer took a step\n"},
	} {
		t.Run(c.kind+c.steps, func(t *testing.T) {
			t.Chdir(t.TempDir())
			command := exec.Command("headroom", "find", "--", python, script, c.kind, "6", c.steps)
			command.Env = append(os.Environ(), "OMP_NUM_THREADS=1")
			said, err := command.CombinedOutput()
			if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || exit.ExitCode() != 1 || !strings.Contains(string(said), c.says) {
				t.Errorf("%v\n%s", err, said)
			}
			if left, err := os.ReadDir("."); err != nil || len(left) > 0 {
				t.Errorf("%v is left behind, %v", left, err)
			}
		})
	}
}
