package model

import (
	"context"
	"errors"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"

	"headroom/device/devicetest"
	"headroom/harness"
	"headroom/memory"
	"headroom/model/data"
	"headroom/recovery"
	"headroom/runs"
)

// watched is a set that remembers which samples were asked for.
type watched struct {
	data.Set
	asked []int
}

func (w *watched) Sample(i int, x *data.Sample) error {
	w.asked = append(w.asked, i)
	return w.Set.Sample(i, x)
}

// TestWholeRunWithRandomFailures trains over several epochs while allocations chosen at random
// fail. There is a checkpoint every few steps and one interrupt. Now and then so many allocations
// fail that the run gives up and is started again. Every step must use exactly one effective batch,
// every epoch must contain each sample exactly once, and the run's records must agree. The weights
// must be close to those of a run in which nothing failed.
func TestWholeRunWithRandomFailures(t *testing.T) {
	const total = 30
	for _, s := range swept() {
		t.Run(s.name, func(t *testing.T) {
			s.spec.Optimizer.Eps = 1e-4 // as in TestEveryAllocationMayFailWithSmallerRetry
			r := &wholeRun{t: t, subject: s, random: rand.New(rand.NewPCG(devicetest.Seed(t), 0)), dir: filepath.Join(t.TempDir(), "run"), steps: map[int][]int{}}
			r.seldom = 4 * sweep{s, wholePlan, wholePlan}.allocations(t)
			r.reach(total/2, harness.ErrInterrupted)
			r.reach(total, nil)
			if r.failed == 0 {
				t.Fatal("nothing failed, so the test shows nothing")
			}
			r.account(total)
			plain, _ := s.open(t)
			steps(t, plain, total, wholePlan)
			if off := distance(r.weights, download(t, plain, plain.st.weights)); !(off <= s.near()) {
				t.Errorf("weights are %.1e from those of a run without failures, want %.0e at most", off, s.near())
			}
			t.Logf("%d allocations failed", r.failed)
		})
	}
}

var wholePlan = plan(7, 4)

// wholeRun trains a subject, which is a small model with its data, in a folder and records
// what happened.
type wholeRun struct {
	t *testing.T
	subject
	random  *rand.Rand
	dir     string
	steps   map[int][]int // samples of each step, as the trainer asked for them
	seldom  int           // one allocation in this many fails
	failed  int           // number of allocations that failed
	weights []float32     // after the newest step
}

// reach starts runs until one ends with the error want after the given number of
// steps. All earlier runs must have given up because even the smallest micro-batch
// failed.
func (r *wholeRun) reach(step int, want error) {
	r.t.Helper()
	var gaveUp *harness.GaveUpError
	for range 100 {
		result, err := r.run(step)
		if errors.Is(err, want) && result.Steps == step {
			return
		}
		if !errors.As(err, &gaveUp) {
			r.t.Fatalf("%+v, %v; want step %d and %v", result, err, step, want)
		}
	}
	r.t.Fatalf("step %d was never reached", step)
}

// run continues the run to its end at step 30, or interrupts it after the step numbered
// until, if that is earlier.
func (r *wholeRun) run(until int) (harness.Result, error) {
	folder, err := runs.Open(r.dir)
	if err != nil {
		r.t.Fatal(err)
	}
	defer func() {
		if err := folder.Close(); err != nil {
			r.t.Error(err)
		}
	}()
	set := &watched{Set: r.set}
	var tr *Trainer
	var dev *devicetest.Faulty
	interrupt := make(chan struct{})
	defer func() {
		if dev != nil {
			r.failed += dev.Injected()
		}
	}()
	session, err := harness.Begin(folder, harness.SessionOptions{
		Steps: 30, Plan: wholePlan, Policy: recovery.Policy{GrowAfter: 2},
		OnStep: func(s runs.StepReport) {
			r.steps[s.Step] = slices.Clone(set.asked[max(0, len(set.asked)-wholePlan.Effective):])
			r.weights = download(r.t, tr, tr.st.weights)
			if s.Step == until && until < 30 {
				close(interrupt)
			}
		},
	})
	if err != nil {
		r.t.Fatal(err)
	}
	return harness.Run(context.Background(), session, harness.RunOptions{
		CheckpointEvery: 4, Keep: 2, Interrupt: interrupt,
		Open: func(context.Context) (harness.Trainer, error) {
			dev = openFaulty(r.t)
			var err error
			if tr, err = New(dev, r.spec, set); err != nil {
				return nil, err
			}
			dev.FailIf(func(n int, _ memory.Bytes) bool { return n == 5 || r.random.IntN(r.seldom) == 0 })
			return tr, nil
		},
	})
}

// account checks a run of the given number of steps in total: its metrics, the samples
// that the trainer read, and the failures in the journal.
func (r *wholeRun) account(total int) {
	r.t.Helper()
	metrics, err := runs.ReadMetrics(r.dir)
	if err != nil || len(metrics) != total {
		r.t.Fatalf("%d steps in the metrics, want %d: %v", len(metrics), total, err)
	}
	var stream []int
	for i, s := range metrics {
		sum := 0
		for _, n := range s.Splits {
			sum += n
		}
		if s.Step != i+1 || s.First != int64(len(stream)) || s.Samples != wholePlan.Effective || sum != wholePlan.Effective {
			r.t.Fatalf("step %d: %+v, want %d samples from %d on", i+1, s, wholePlan.Effective, len(stream))
		}
		stream = append(stream, r.steps[s.Step]...)
	}
	for epoch := range slices.Chunk(stream, r.set.Len()) {
		if sorted := slices.Compact(slices.Sorted(slices.Values(epoch))); len(sorted) != len(epoch) {
			r.t.Fatalf("an epoch has a sample twice: %v", epoch)
		}
	}
	failures, probes := 0, 0
	journal, err := runs.ReadJournal(r.dir)
	if err != nil {
		r.t.Fatal(err)
	}
	for _, e := range journal {
		switch e.Kind {
		case runs.KindOOM:
			failures++
		case runs.KindProbe:
			if e.OOM != nil {
				probes++
			}
		}
	}
	if failures+probes != r.failed {
		r.t.Errorf("the journal records %d failures and %d probes that failed, %d allocations did", failures, probes, r.failed)
	}
}
