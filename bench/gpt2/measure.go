package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"
	"time"

	"headroom/memory"
	"headroom/model"
	"headroom/recovery"
)

// result holds what a run measured. torch_gpt2.py writes the same keys.
type result struct {
	Tool      string   `json:"tool"`
	Device    string   `json:"device"`
	Command   []string `json:"command"`
	Revision  string   `json:"revision"` // commit that the program was built from; "" if not known
	Precision string   `json:"precision"`
	Context   int      `json:"context"`
	Micro     int      `json:"micro"`
	Effective int      `json:"effective"`
	Seed      uint64   `json:"seed"`
	Stream    uint32   `json:"stream_crc32"`

	BuildSeconds float64   `json:"build_seconds"` // time spent on building the model and its initial weights
	Losses       []float64 `json:"losses"`
	GradNorms    []float64 `json:"grad_norms"` // before clipping
	StepSeconds  []float64 `json:"step_seconds"`
	MomentScale  float64   `json:"moment_scale"` // the saved first moments ÷ the gradients of the first step

	Median       float64      `json:"median_step_seconds"` // after warm-up
	TokensPerSec float64      `json:"tokens_per_second"`   // at the median
	Peak         memory.Bytes `json:"peak_bytes"`          // allocated, over all steps
	PeakReserved memory.Bytes `json:"peak_reserved_bytes"`
	Memory       []peak       `json:"memory"` // peaks of the forward and backward pass of one micro-batch, by its size
}

// peak is the peak memory of one micro-batch of the given size.
type peak struct {
	Micro    int          `json:"micro"`
	Bytes    memory.Bytes `json:"peak_bytes"`
	Reserved memory.Bytes `json:"peak_reserved_bytes"`
}

// train runs all steps and fills in their results.
func (r *result) train(t *model.Trainer, o options) error {
	plan := recovery.Plan{Effective: o.effective, World: 1, Micro: o.micro}
	for i := range o.steps {
		start := time.Now()
		report, err := t.Step(context.Background(), plan)
		if err != nil {
			return err
		}
		seconds := time.Since(start).Seconds()
		r.Losses = append(r.Losses, report.Loss)
		r.GradNorms = append(r.GradNorms, report.GradNorm)
		r.StepSeconds = append(r.StepSeconds, seconds)
		r.Peak = max(r.Peak, report.Memory.Peak)
		r.PeakReserved = max(r.PeakReserved, report.Memory.PeakReserved)
		if i == 0 || (i+1)%20 == 0 || i+1 == o.steps {
			fmt.Fprintf(os.Stderr, "step %d: loss %.6f, gradient norm %.4f, %.4f s\n", i+1, report.Loss, report.GradNorm, seconds)
		}
		if i == 0 && o.gradients != "" {
			if err := save(t, o.gradients); err != nil {
				return err
			}
		}
	}
	if len(r.StepSeconds) > o.warmup {
		r.Median = median(r.StepSeconds[o.warmup:])
		r.TokensPerSec = float64(o.effective*o.context) / r.Median
	}
	if len(r.GradNorms) > 0 {
		r.MomentScale = momentScale(t.Spec().Optimizer, r.GradNorms[0])
	}
	return nil
}

// momentScale returns the ratio of the first moments after one step to the gradients. It
// is 1−β₁. If the gradients were clipped, it is 1−β₁ times the clipping factor.
func momentScale(o model.Optimizer, norm float64) float64 {
	scale := 1 - float64(float32(o.Beta1))
	if o.Clip > 0 && norm > o.Clip {
		scale *= o.Clip / norm
	}
	return scale
}

// probe measures the peak memory of one micro-batch of each of the sizes.
func (r *result) probe(t *model.Trainer, sizes []int) error {
	for _, n := range sizes {
		if _, err := t.EmptyCache(); err != nil {
			return err
		}
		stats, err := t.Probe(context.Background(), n)
		if err != nil {
			return fmt.Errorf("probe micro-batch %d: %w", n, err)
		}
		fmt.Fprintf(os.Stderr, "micro-batch %d: peak %v\n", n, stats.Peak)
		r.Memory = append(r.Memory, peak{n, stats.Peak, stats.PeakReserved})
	}
	return nil
}

// median returns the median of values, of which there must be at least one.
func median(values []float64) float64 {
	sorted := slices.SortedFunc(slices.Values(values), cmp.Compare[float64])
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}
