package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"headroom/runs"
)

// cases are trainings of structures that public reports are about, in worker/testdata/cases. Each
// is run with room, and then in too little memory with headroom. A case without a reason must
// survive with the numbers of the run with room. Any other must end with the allocator's own
// error after headroom has said the reason, and must not have trained anything else until then.
var cases = []struct {
	command string // the script and its arguments
	room    int    // MiB beyond what the process uses when its loop begins
	reason  string // a regular expression that matches what headroom says
}{
	{"accuracy_after_step.py", 195, ""},
	{"crf.py", 151, ""},
	{"crf.py --token", 151, ""},
	{"ctc.py", 281, ""},
	{"ctc.py --concat", 281, ""},
	{"ddp1.py", 90, ""},
	{"detection.py", 177, "the first module is given a list of 64 items, and only tensors are cut"},
	{"dice.py", 208, ""},
	{"distill.py", 229, ""},
	{"fno.py", 53, ""},
	{"funcgrad.py", 209, `it was inside torch.func, .*(\n.*)*vmap\(…, chunk_size=N\) computes N rows at a time`},
	{"gnn.py", 200, "a call to GNN fails if dimension 0 of its arguments is cut from [0-9]+ to [0-9]+"},
	{"growth.py", 313, "(?s)runs out in about [^,]*, near step (5[5-9]|6[0-9]);.*left to the command's own code: .*memory grows by [^\n]*: `memory` \\([^\n]*growth.py:19\\) holds (about )?[0-9]+ tensors[^\n]*\nheadroom: hint: empty `memory` when its tensors have been used"},
	{"loader.py", 847, "in a worker process of a DataLoader, which loaded one sample: the size of the batch does not change that"},
	{"lora_ckpt.py", 98, ""},
	{"lora_ckpt.py --reentrant", 98, ""},
	{"moco.py", 56, "MoCo had changed a buffer, an attribute or a frozen parameter when it failed"},
	{"moe.py", 70, "the loss of a batch is not a weighted sum of the losses of its rows"},
	{"multitask.py", 109, ""},
	{"multitask.py --mask", 109, ""},
	{"nerf.py", 90, ``},
	{"perceptual.py", 145, ""},
	{"pixels.py", 39, "no optimizer trains a parameter of Sequential, but something that it is given"},
	{"ppo.py", 87, ""},
	{"ppo.py --inside", 87, ""},
	{"rnn_tbptt.py", 210, ""},
	{"sumloss.py 4", 69, ""},
	{"sumloss.py 16", 69, ""},
	{"varlen.py", 104, "a batch of one row cannot be split"},
	{"varlen.py --flat", 104, "dimension 0 of the arguments of .* may not be the batch"},
}

// caseEnvironment lets a limit on the process's data be a limit on its tensors: even those of one step of a GRU, of
// 60 KiB, are given back to the system when they are freed.
var caseEnvironment = []string{"OMP_NUM_THREADS=1", "MALLOC_ARENA_MAX=1", "MALLOC_MMAP_THRESHOLD_=32768", "MALLOC_TRIM_THRESHOLD_=32768", "GORACE=atexit_sleep_ms=0", "PYTHONDONTWRITEBYTECODE=1"}

func TestCases(t *testing.T) {
	python := pythonWithTorch(t)
	dir, err := filepath.Abs(filepath.Join("..", "..", "worker", "testdata", "cases"))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range cases {
		t.Run(c.command, func(t *testing.T) {
			t.Parallel()
			folder := t.TempDir()
			run := func(front []string, room string) (numbers [][]float64, status int, errs string) {
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
				defer cancel()
				words := append(append(front, python), strings.Fields(filepath.Join(dir, c.command))...)
				p := exec.CommandContext(ctx, words[0], words[1:]...)
				p.Dir, p.Env = folder, append(append(os.Environ(), caseEnvironment...), room)
				var said, wrong bytes.Buffer
				p.Stdout, p.Stderr = &said, &wrong
				_ = p.Run() // the exit status is returned below
				for lines := bufio.NewScanner(&said); lines.Scan(); {
					numbers = append(numbers, numbersIn(lines.Text()))
				}
				return numbers, p.ProcessState.ExitCode(), wrong.String()
			}
			want, status, errs := run(nil, "")
			if status != 0 || len(want) == 0 {
				t.Fatalf("with room: status %d, %v\n%s", status, want, errs)
			}
			got, status, errs := run([]string{"headroom", "run", "--name", "case", "--"}, fmt.Sprintf("ROOM=%d", c.room))
			if survives := c.reason == ""; survives != (status == 0) || survives && len(got) != len(want) {
				t.Fatalf("status %d, %d lines of %d\n%s", status, len(got), len(want), errs)
			}
			if !regexp.MustCompile(c.reason).MatchString(errs) {
				t.Errorf("not said: %s\n%s", c.reason, errs)
			}
			for i := range min(len(got), len(want)) {
				if len(got[i]) != len(want[i]) {
					t.Fatalf("line %d: %v, with room %v", i, got[i], want[i])
				}
				for k := range got[i] { // in an unstable start, as with CTC, rounding errors grow from step to step
					if d := math.Abs(got[i][k] - want[i][k]); !(d <= 1e-4*math.Abs(want[i][k])+1e-9) {
						t.Errorf("line %d: %v, with room %v", i, got[i], want[i])
						break
					}
				}
			}
			if c.reason == "" && survivals(t, filepath.Join(folder, "runs", "case")) == 0 {
				t.Errorf("nothing failed: there was too much room\n%s", errs)
			}
		})
	}
}

// numbersIn returns the numbers among the words of a line. A hash of weights is no number, even if
// it has no letters.
func numbersIn(line string) (numbers []float64) {
	for _, word := range strings.Fields(line) {
		if v, err := strconv.ParseFloat(word, 64); err == nil && (len(word) != 12 || strings.ContainsAny(word, ".-")) {
			numbers = append(numbers, v)
		}
	}
	return numbers
}

// survivals returns how many failures of the first attempt of a run were survived in place.
func survivals(t *testing.T, dir string) (count int) {
	t.Helper()
	entries, err := runs.ReadJournal(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.Kind == runs.KindSurvived {
			count++
		}
		if e.Attempt > 1 {
			t.Errorf("started again: %+v", e)
		}
	}
	return count
}
