package harness

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"headroom/memory"
	"headroom/recovery"
	"headroom/runs"
)

var plan64 = recovery.Plan{Effective: 64, World: 1, Micro: 64}

// failedSteps finds the steps that ran out of memory in a text that story returned. A step
// that ran out of memory again after the cache was emptied is matched only once.
var failedSteps = regexp.MustCompile(`\d+!( empty \d+!)*`)

func TestRunTrajectory(t *testing.T) {
	busy := func(from, to int, held memory.Bytes) func(int) memory.Bytes {
		return func(step int) memory.Bytes {
			if step >= from && step < to {
				return held
			}
			return 0
		}
	}
	for _, test := range []struct {
		name  string
		micro int
		steps int
		grow  int
		lab   func(*lab)
		want  string
	}{
		{name: "fits", micro: 32, steps: 3, want: "32 32 32"},
		// 4 GiB + n/2 GiB ≤ 24 GiB: 40 fit, which makes micro-batches of 32.
		{name: "too large", micro: 64, steps: 3, want: "64! empty 64! search empty 32 32 32"},
		{name: "auto", micro: 0, steps: 3, want: "search 32 32 32"},
		{name: "a single failure is retried as it was", micro: 32, steps: 3,
			lab:  func(l *lab) { l.allocFails = func(n int) bool { return n == 5 } },
			want: "32 32! empty 32 32"},
		{name: "an outlier", micro: 0, steps: 7,
			lab: func(l *lab) {
				l.before = func(l *lab, step int) {
					l.perSample = memory.GiB / 2
					if step == 6 {
						l.perSample *= 2
					}
				}
			},
			want: "search 32 32 32 32 32 32! empty 32! 16 32"},
		{name: "others come and go", micro: 32, steps: 9, grow: 2,
			lab:  func(l *lab) { l.foreign = busy(3, 5, 10*memory.GiB) },
			want: "32 32 32! empty 32! search empty 16 16 16 empty 32 32 32 32"},
	} {
		t.Run(test.name, func(t *testing.T) {
			j := newJourney(t, plan64.WithMicro(test.micro), test.steps)
			j.options.Policy.GrowAfter = test.grow
			if test.lab != nil {
				test.lab(j.lab)
			}
			result := j.mustRun()
			if got := story(j.lab.trace); got != test.want {
				t.Errorf("trajectory\n got %s\nwant %s\nprobes and all: %v", got, test.want, j.lab.trace)
			}
			if !result.Finished || result.Steps != test.steps || result.Attempts != 1 || result.Failures != len(failedSteps.FindAllString(test.want, -1)) || result.Last.Step != test.steps {
				t.Errorf("result %+v", result)
			}
			j.account(test.steps)
		})
	}
}

// story returns the trace as text. A search and the emptying of the cache before it are
// shortened to one word.
func story(trace []string) string {
	var words []string
	for i, w := range trace {
		switch {
		case w[0] != '?' && (w != "empty" || i+1 == len(trace) || trace[i+1][0] != '?'):
			words = append(words, w)
		case w[0] == '?' && words[max(0, len(words)-1)] != "search":
			words = append(words, "search")
		case w == "empty" && trace[i+1][0] == '?' && !slices.Contains(words, "search"):
			words = append(words, "search")
		}
	}
	return strings.Join(words, " ")
}

func TestJournalTellsARecovery(t *testing.T) {
	j := newJourney(t, plan64, 2)
	j.mustRun()
	entries, err := runs.ReadJournal(j.dir)
	if err != nil || len(entries) != len(j.entries) {
		t.Fatalf("%d entries in the journal, %d told: %v", len(entries), len(j.entries), err)
	}
	var kinds []runs.Kind
	for i, e := range entries {
		if e.Text != j.entries[i].Text || e.Time.IsZero() || e.Attempt != 1 {
			t.Errorf("entry %d is %+v, told was %+v", i, e, j.entries[i])
		}
		if e.Kind != runs.KindProbe {
			kinds = append(kinds, e.Kind)
		}
		if e.Kind == runs.KindOOM && (e.OOM == nil || e.Verdict == nil || e.Verdict.Cause != memory.Batch || e.Plan.Micro != 64) {
			t.Errorf("failure without its evidence: %+v", e)
		}
	}
	want := []runs.Kind{runs.KindRun, runs.KindAttempt, runs.KindPlan, runs.KindOOM, runs.KindDecision, runs.KindRemedy, runs.KindOOM, runs.KindDecision, runs.KindSearch, runs.KindDecision, runs.KindCheckpoint, runs.KindDone}
	if !slices.Equal(kinds, want) {
		t.Errorf("kinds %v, want %v", kinds, want)
	}
	log, err := os.ReadFile(filepath.Join(j.dir, "logs", "attempt-001.log"))
	if err != nil || !strings.Contains(string(log), "out of memory at micro-batch 64 in forward") {
		t.Errorf("log %q, %v", log, err)
	}
}

// TestRetriesLeaveNoTrace checks that a run whose failures were retried with the same plan
// ends with the weights of a run that never failed, to the bit.
func TestRetriesLeaveNoTrace(t *testing.T) {
	quiet := newJourney(t, plan64.WithMicro(16), 20)
	quiet.mustRun()
	failing := newJourney(t, plan64.WithMicro(16), 20)
	failing.lab.allocFails = func(n int) bool { return n%13 == 5 }
	if result := failing.mustRun(); result.Failures < 10 {
		t.Fatalf("only %d failures", result.Failures)
	}
	if strings.Contains(story(failing.lab.trace), "search") {
		t.Fatal("the plan changed; this test is about retries of the same plan")
	}
	same(t, quiet.dir, failing.dir, 20)
}

// same checks that two runs ended with the same state, to the bit.
func same(t *testing.T, a, b string, step int) {
	t.Helper()
	var states [2]string
	for i, dir := range []string{a, b} {
		text, err := os.ReadFile(filepath.Join(dir, "checkpoints", runs.CheckpointName(step), "state.safetensors"))
		if err != nil {
			t.Fatal(err)
		}
		states[i] = string(text)
	}
	if states[0] != states[1] {
		t.Errorf("states differ:\n%s%s", states[0], states[1])
	}
}

func TestFinishedRunDoesNothing(t *testing.T) {
	j := newJourney(t, plan64.WithMicro(16), 5)
	j.mustRun()
	before, told, attempts := tree(t, j.dir), len(j.entries), j.lab.attempts
	result := j.mustRun()
	if !result.Finished || result.Steps != 5 || result.Resumed != 5 || result.Attempts != 0 || j.lab.attempts != attempts || len(j.entries) != told {
		t.Errorf("result %+v after %d trainers", result, j.lab.attempts)
	}
	if after := tree(t, j.dir); after != before {
		t.Errorf("folder was\n%s\nis\n%s", before, after)
	}
	j.options.Steps = 8
	if result := j.mustRun(); result.Steps != 8 || result.Resumed != 5 {
		t.Errorf("more steps: %+v", result)
	}
	j.account(8)
}

// tree returns the names and contents of all files in dir except the lock.
func tree(t testing.TB, dir string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() || d.Name() == "lock" {
			return err
		}
		text, err := os.ReadFile(path)
		b.WriteString(strings.TrimPrefix(path, dir) + ": " + string(text) + "\n")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestNotMemoryIsNeverRetried(t *testing.T) {
	boom := errors.New("device lost")
	for _, test := range []struct {
		name  string
		twist func(*runs.StepReport) error
		check func(t *testing.T, err error)
	}{
		{"error", func(*runs.StepReport) error { return boom }, func(t *testing.T, err error) {
			if !errors.Is(err, boom) || err.Error() != "step 3: device lost" {
				t.Error(err)
			}
		}},
		{"not finite", func(s *runs.StepReport) error { return &NotFiniteError{Step: s.Step, What: "loss", Value: math.Inf(1)} }, func(t *testing.T, err error) {
			if n := (*NotFiniteError)(nil); !errors.As(err, &n) || err.Error() != "step 3: the loss is +Inf" {
				t.Error(err)
			}
		}},
		{"not finite, unnoticed", func(s *runs.StepReport) error { s.GradNorm = math.NaN(); return nil }, func(t *testing.T, err error) {
			if n := (*NotFiniteError)(nil); !errors.As(err, &n) || n.What != "gradient norm" {
				t.Error(err)
			}
		}},
		{"panic", func(*runs.StepReport) error { panic("index out of range") }, func(t *testing.T, err error) {
			if p := (*PanicError)(nil); !errors.As(err, &p) || p.Step != 3 || !strings.Contains(string(p.Stack), "toy_test.go") {
				t.Error(err)
			}
		}},
		{"samples", func(s *runs.StepReport) error { s.Samples--; return nil }, broken("samples", 63, 64)},
		{"step", func(s *runs.StepReport) error { s.Step++; return nil }, broken("step", 4, 3)},
		{"position", func(s *runs.StepReport) error { s.First = 0; return nil }, broken("position of the first sample", 0, 128)},
	} {
		t.Run(test.name, func(t *testing.T) {
			j := newJourney(t, plan64.WithMicro(16), 5)
			j.options.CheckpointEvery = 2
			tries := 0
			j.lab.twist = func(s *runs.StepReport) error {
				if s.Step != 3 {
					return nil
				}
				tries++
				return test.twist(s)
			}
			result, err := j.run(context.Background())
			if err == nil || result.Finished || result.Steps != 2 || tries != 1 {
				t.Fatalf("result %+v after %d tries: %v", result, tries, err)
			}
			test.check(t, err)
			value := ""
			if n := (*NotFiniteError)(nil); errors.As(err, &n) {
				value = n.What
			}
			if last := j.entries[len(j.entries)-1]; last.Kind != runs.KindFailed || last.Text != err.Error() || last.NotFinite != value {
				t.Errorf("last entry %+v", last)
			}
			if status, err := runs.ReadStatus(j.dir); err != nil || status.State != runs.StateFailed || status.Step != 2 {
				t.Errorf("status %+v, %v", status, err)
			}
			log, _ := os.ReadFile(filepath.Join(j.dir, "logs", "attempt-001.log"))
			if test.name == "panic" && !strings.Contains(string(log), "toy_test.go") {
				t.Errorf("the log has no stack: %s", log)
			}
			j.lab.twist = nil
			j.mustRun()
			j.account(5)
		})
	}
}

func broken(what string, have, want int64) func(*testing.T, error) {
	return func(t *testing.T, err error) {
		b := (*BrokenPromiseError)(nil)
		if !errors.As(err, &b) || b.What != what || b.Have != have || b.Want != want {
			t.Error(err)
		}
	}
}

func TestGivesUp(t *testing.T) {
	j := newJourney(t, plan64.WithMicro(16), 5)
	j.lab.before = func(l *lab, step int) {
		if step == 3 {
			l.base = l.device - l.perSample/2 // as if memory had leaked
		}
	}
	j.options.Policy.Relaunches = 0
	result, err := j.run(context.Background())
	var gaveUp *GaveUpError
	if !errors.As(err, &gaveUp) || gaveUp.Step != 3 || gaveUp.Decision.Verdict == nil || gaveUp.Decision.Hint == "" || result.Steps != 2 || result.AllFailures != 1 {
		t.Fatalf("%+v, %v", result, err)
	}
	if !strings.HasSuffix(j.kinds(), "decision, checkpoint, failed") {
		t.Errorf("kinds %s", j.kinds())
	}
	j.lab.base, j.lab.before = 4*memory.GiB, nil
	if result := j.mustRun(); result.Resumed != 2 {
		t.Errorf("went on from step %d", result.Resumed)
	}
	j.account(5)
}

func TestModelDoesNotFit(t *testing.T) {
	j := newJourney(t, plan64.WithMicro(16), 5)
	j.lab.foreign = func(int) memory.Bytes { return 21 * memory.GiB }
	j.options.Policy.Waits = 0
	_, err := j.run(context.Background())
	var gaveUp *GaveUpError
	if !errors.As(err, &gaveUp) || gaveUp.Decision.Verdict.Cause != memory.Foreign || !strings.Contains(gaveUp.Decision.Hint, "stop the other processes, choose another device") {
		t.Fatal(err)
	}
	if j.kinds() != "run, attempt, oom, decision, failed" || j.entries[2].OOM.Phase != memory.PhaseLoad {
		t.Errorf("kinds %s, %+v", j.kinds(), j.entries[2])
	}
}

// TestWaitsToLoad checks that a run waits if other processes occupy the device when it
// starts.
func TestWaitsToLoad(t *testing.T) {
	j := newJourney(t, plan64.WithMicro(16), 5)
	slept := 0
	j.lab.foreign = func(int) memory.Bytes {
		if slept < 2 {
			return 21 * memory.GiB
		}
		return 0
	}
	j.options.Policy.Waits = 3
	j.options.Sleep = func(context.Context, time.Duration) error { slept++; return nil }
	if result := j.mustRun(); result.Failures != 2 || result.Attempts != 3 || slept != 2 {
		t.Errorf("%+v after %d waits", result, slept)
	}
	j.account(5)
}

// TestWaitsAreBoundedWhileLoading checks that memory.waits counts every wait until a step
// is finished, even if the model can be built but its checkpoint cannot be loaded.
func TestWaitsAreBoundedWhileLoading(t *testing.T) {
	j := newJourney(t, plan64.WithMicro(16), 2)
	j.mustRun()
	j.options.Steps, j.options.Policy.Waits = 4, 2
	slept := 0
	j.options.Sleep = func(context.Context, time.Duration) error { slept++; return nil }
	j.lab.loading = func() error {
		return &memory.OutOfMemoryError{Requested: memory.GiB, Stats: memory.Stats{Capacity: j.lab.device, Foreign: 22 * memory.GiB}}
	}
	_, err := j.run(context.Background())
	var gaveUp *GaveUpError
	if !errors.As(err, &gaveUp) || gaveUp.Decision.Verdict.Cause != memory.Foreign || slept != 2 {
		t.Errorf("%v, after %d waits", err, slept)
	}
}

// TestGrownPlanIsKeptOnceItHasRun checks that a larger micro-batch is written to
// learned.json only after a step has run with it. If that size takes the process down,
// the next process must not begin with it.
func TestGrownPlanIsKeptOnceItHasRun(t *testing.T) {
	j := newJourney(t, plan64, 8)
	j.options.Policy.GrowAfter = 2
	j.lab.foreign = func(step int) memory.Bytes {
		if step == 2 || step == 3 {
			return 12 * memory.GiB
		}
		return 0
	}
	kept := func() int {
		text, err := os.ReadFile(filepath.Join(j.dir, "learned.json"))
		var l runs.Learned
		if err == nil {
			err = json.Unmarshal(text, &l)
		}
		if err != nil {
			t.Error(err)
		}
		return l.Learned.Micro
	}
	grown := 0
	j.options.OnEntry = func(e runs.Entry) {
		if e.Decision != nil && e.Decision.Remedy == recovery.Grow {
			if grown = e.Decision.Plan.Micro; kept() >= grown {
				t.Errorf("micro-batch %d is kept before it has run", grown)
			}
		}
	}
	j.mustRun()
	if grown == 0 || kept() != grown {
		t.Errorf("grew to micro-batch %d, kept is %d", grown, kept())
	}
}

// TestNothingBelowTheSmallestIsProbed checks that a search probes no size below the
// smallest allowed.
func TestNothingBelowTheSmallestIsProbed(t *testing.T) {
	j := newJourney(t, plan64.WithMicro(0), 2)
	j.options.Policy.MinMicro = 16
	j.mustRun()
	probes := 0
	for _, w := range j.lab.trace {
		if n := 0; strings.HasPrefix(w, "?") {
			if _, err := fmt.Sscanf(w, "?%d", &n); err != nil || n < 16 {
				t.Errorf("probed %s, allowed is 16 or more", w)
			}
			probes++
		}
	}
	if probes == 0 {
		t.Error("nothing was probed")
	}
}

func TestRelaunchLosesNothing(t *testing.T) {
	j := newJourney(t, plan64.WithMicro(16), 40)
	leak := memory.Bytes(0)
	j.lab.before = func(l *lab, step int) {
		leak += 500 * memory.MiB
		l.base = 4*memory.GiB + leak
	}
	open := j.options.Open
	j.options.Open = func(ctx context.Context) (Trainer, error) {
		leak = 0
		j.lab.base = 4 * memory.GiB
		return open(ctx)
	}
	j.options.Policy.Relaunches = 5
	result := j.mustRun()
	if result.Attempts < 2 || result.Resumed != 0 || result.Failures < 1 {
		t.Errorf("%+v", result)
	}
	made := slices.DeleteFunc(j.lab.trace, func(w string) bool { return w != "16" })
	if len(made) != 40 {
		t.Errorf("%d steps were made for 40", len(made))
	}
	j.account(40)
	quiet := newJourney(t, plan64.WithMicro(16), 40)
	quiet.mustRun()
	same(t, quiet.dir, j.dir, 40)
	if log, err := os.ReadFile(filepath.Join(j.dir, "logs", "attempt-002.log")); err != nil || len(log) == 0 {
		t.Errorf("log of the second attempt: %v", err)
	}
}

func TestRelaunchKeepsRecompute(t *testing.T) {
	j := newJourney(t, plan64.WithMicro(16), 60)
	j.options.Policy = recovery.Policy{MinMicro: 16, Recompute: true, Relaunches: 5}
	j.lab.device = 11 * memory.GiB // 12 are needed, 6 when recomputing
	j.lab.before = func(l *lab, _ int) { l.base += 200 * memory.MiB }
	var newest *toy
	j.options.Open = func(ctx context.Context) (Trainer, error) {
		j.lab.base = 4 * memory.GiB
		trainer, err := j.lab.Open(ctx)
		newest, _ = trainer.(*toy)
		return trainer, err
	}
	begun := -1
	j.options.BeforeStep = func(finished int) {
		if begun++; finished != begun {
			t.Errorf("call %d of BeforeStep is for %d finished steps", begun, finished)
		}
	}
	if result := j.mustRun(); result.Attempts < 2 || !newest.recompute {
		t.Errorf("recompute %v in attempt %d", newest.recompute, result.Attempts)
	}
	j.account(60)
}

func TestDecisionsNameTheStepOfTheRun(t *testing.T) {
	j := newJourney(t, plan64.WithMicro(16), 2)
	j.mustRun()
	j.options.Steps, j.entries = 4, nil
	j.lab.before = func(l *lab, step int) {
		if step == 3 {
			j.lab.before = nil
			failing := l.allocs
			l.allocFails = func(n int) bool { return n == failing }
		}
	}
	j.mustRun()
	for _, e := range j.entries {
		if (e.Kind == runs.KindOOM || e.Kind == runs.KindDecision) && !strings.Contains(e.Text, "step 3") {
			t.Errorf("%s: %s", e.Kind, e.Text)
		}
	}
	if !strings.Contains(j.kinds(), "oom, decision") {
		t.Errorf("entries %s", j.kinds())
	}
}

func TestRecompute(t *testing.T) {
	for _, able := range []bool{true, false} {
		j := newJourney(t, plan64.WithMicro(4), 6)
		j.options.Policy.Recompute, j.options.Policy.MinMicro = true, 4
		j.lab.device = 5 * memory.GiB // 4 + 2 GiB are needed, 4.5 when recomputing
		if !able {
			j.options.Open = func(ctx context.Context) (Trainer, error) {
				trainer, err := j.lab.Open(ctx)
				return struct{ Trainer }{trainer}, err
			}
		}
		_, err := j.run(context.Background())
		if gaveUp := (*GaveUpError)(nil); able != (err == nil) || !able && !errors.As(err, &gaveUp) {
			t.Fatalf("able %v: %v", able, err)
		}
		if able {
			j.account(6)
		}
	}
}

func TestWaitsForOthers(t *testing.T) {
	j := newJourney(t, plan64.WithMicro(4), 6)
	j.options.Policy.MinMicro = 4
	held := memory.Bytes(0)
	j.lab.foreign = func(step int) memory.Bytes { return held }
	j.lab.before = func(l *lab, step int) {
		if step == 3 && j.slept == 0 {
			held = 19 * memory.GiB
		}
	}
	sleep := j.options.Sleep
	j.options.Sleep = func(ctx context.Context, d time.Duration) error {
		if j.slept == 3*waitPoll {
			held = 0
		}
		return sleep(ctx, d)
	}
	result := j.mustRun()
	if j.slept != 4*waitPoll || result.Failures != 1 {
		t.Errorf("slept %v, %+v", j.slept, result)
	}
	j.account(6)
}

func TestEffectiveBatchMustNotChange(t *testing.T) {
	j := newJourney(t, plan64.WithMicro(16), 3)
	j.mustRun()
	j.options.Steps, j.options.Plan.Effective = 6, 32
	var mismatch *MismatchError
	if _, err := j.run(context.Background()); !errors.As(err, &mismatch) || mismatch.Key != "effective batch" {
		t.Error(err)
	}
}

func TestOptionsAreChecked(t *testing.T) {
	_, err := Begin(nil, SessionOptions{})
	if err == nil || !strings.Contains(err.Error(), "folder") {
		t.Errorf("no folder: %v", err)
	}
	f, failed := runs.Open(filepath.Join(t.TempDir(), "run"))
	if failed != nil {
		t.Fatal(failed)
	}
	defer func() { _ = f.Close() }()
	_, err = Begin(f, SessionOptions{Steps: -1, Plan: recovery.Plan{Micro: -3}})
	for _, want := range []string{"steps -1", "micro-batch -3"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("no word of %q: %v", want, err)
		}
	}
	s, failed := Begin(f, SessionOptions{Steps: 1, Plan: plan64})
	if failed != nil {
		t.Fatal(failed)
	}
	_, err = Run(context.Background(), s, RunOptions{CheckpointEvery: -2})
	for _, want := range []string{"open is needed", "every -2"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("no word of %q: %v", want, err)
		}
	}
}
