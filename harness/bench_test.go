package harness

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"testing"
	"time"

	"headroom/memory"
	"headroom/recovery"
	"headroom/runs"
)

// idle is a trainer that computes nothing. Each step merely lasts for the duration in
// busy.
type idle struct {
	busy   time.Duration
	report runs.StepReport
}

func (i *idle) Step(_ context.Context, p recovery.Plan) (runs.StepReport, error) {
	for start := time.Now(); time.Since(start) < i.busy; {
	}
	i.report.First += int64(i.report.Samples)
	i.report.Step++
	i.report.Samples = p.Effective
	return i.report, nil
}

func (i *idle) Probe(context.Context, int) (memory.Stats, error) { return memory.Stats{}, nil }
func (i *idle) EmptyCache() (memory.Bytes, error)                { return 0, nil }
func (i *idle) Stats() memory.Stats                              { return i.report.Memory }
func (i *idle) Save(io.Writer) error                             { return nil }
func (i *idle) Load(io.Reader) error                             { return nil }
func (i *idle) Close() error                                     { return nil }

func newIdle(busy time.Duration) *idle {
	return &idle{busy: busy, report: runs.StepReport{Loss: 2.3456789, GradNorm: 0.987654321, LR: 3e-4, Splits: []int{16, 16, 16, 16},
		Memory: memory.Stats{Capacity: 24 << 30, Free: 4 << 30, Reserved: 20 << 30, Allocated: 4<<30 + 512, Peak: 19<<30 + 4096, PeakReserved: 20 << 30}}}
}

// BenchmarkRun measures what a step costs beyond the trainer's own work. That cost is the
// result of the sub-benchmark "run" minus that of the sub-benchmark "bare".
func BenchmarkRun(b *testing.B) {
	for _, busy := range []time.Duration{0, 10 * time.Millisecond} {
		b.Run(fmt.Sprintf("bare/%v", busy), func(b *testing.B) {
			trainer := newIdle(busy)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := trainer.Step(context.Background(), plan64); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(fmt.Sprintf("run/%v", busy), func(b *testing.B) {
			f, err := runs.Open(filepath.Join(b.TempDir(), "run"))
			if err != nil {
				b.Fatal(err)
			}
			o := options{SessionOptions{Steps: b.N, Plan: plan64, Policy: recovery.Policy{GrowAfter: 100}},
				RunOptions{Open: func(context.Context) (Trainer, error) { return newIdle(busy), nil }}}
			o.BeforeStep = func(finished int) {
				if finished == min(1, b.N-1) { // opening the folder is not part of a step
					b.ResetTimer()
				}
			}
			o.OnStep = func(s runs.StepReport) {
				if s.Step == b.N {
					b.StopTimer()
				}
			}
			b.ReportAllocs()
			if _, err := Run(context.Background(), o.begun(b, f), o.RunOptions); err != nil {
				b.Fatal(err)
			}
			if err := f.Close(); err != nil {
				b.Fatal(err)
			}
		})
	}
}
