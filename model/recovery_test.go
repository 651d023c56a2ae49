package model

import (
	"context"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"headroom/device/devicetest"
	"headroom/harness"
	"headroom/memory"
	"headroom/recovery"
	"headroom/runs"
)

// BenchmarkRecovery measures what an out-of-memory failure costs, from the failing
// allocation to the first allocation of the retried step. In between, the stack is unwound,
// the failure is diagnosed, the decision is made and written to the journal (with fsync),
// and the cache is emptied. One iteration is one failure. On a GPU the model has the shape
// of GPT-2; on the embedded device it is a small GPT.
func BenchmarkRecovery(b *testing.B) {
	s := tiny(GPT)
	effective := 8
	if onGPU {
		s.spec.Width, s.spec.Layers, s.spec.Heads = 768, 12, 12
		s.set, effective = text{n: 200, tokens: 512, classes: 256}, 16
	}
	folder, err := runs.Open(filepath.Join(b.TempDir(), "run"))
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = folder.Close() }()
	var failedAt time.Time
	var took []time.Duration
	session, err := harness.Begin(folder, harness.SessionOptions{Steps: b.N, Plan: plan(effective, effective)})
	if err != nil {
		b.Fatal(err)
	}
	_, err = harness.Run(context.Background(), session, harness.RunOptions{
		Open: func(context.Context) (harness.Trainer, error) {
			dev, err := openDevice(16 * memory.GiB)
			if err != nil {
				return nil, err
			}
			d := devicetest.NewFaulty(dev)
			tr, err := New(d, s.spec, s.set)
			if err != nil {
				return nil, err
			}
			fail, seen := 0, 0
			d.FailIf(func(int, memory.Bytes) bool {
				seen++
				switch {
				case !failedAt.IsZero():
					took = append(took, time.Since(failedAt))
					failedAt = time.Time{}
					fail = -1
				case fail == seen:
					failedAt = time.Now()
					return true
				}
				return false
			})
			return &stumbling{tr, &fail, &seen}, nil
		},
	})
	if err != nil || len(took) != b.N {
		b.Fatalf("%d recoveries, want %d: %v", len(took), b.N, err)
	}
	slices.Sort(took)
	b.ReportMetric(took[len(took)/2].Seconds()*1e3, "ms-median")
	b.ReportMetric(took[len(took)-1].Seconds()*1e3, "ms-worst")
}

// stumbling is a trainer in which every step fails at its first try, at an
// allocation drawn at random.
type stumbling struct {
	*Trainer
	fail, seen *int // fail: the allocation to fail, 0 once a step is done, -1 once it has failed; seen: allocations in this try
}

func (f *stumbling) Step(ctx context.Context, p recovery.Plan) (runs.StepReport, error) {
	if *f.fail == 0 {
		*f.fail = 1 + rand.IntN(20)
	}
	*f.seen = 0
	r, err := f.Trainer.Step(ctx, p)
	if err == nil {
		*f.fail = 0
	}
	return r, err
}
