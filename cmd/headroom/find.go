package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/urfave/cli/v2"

	"headroom/configs"
	"headroom/harness"
	"headroom/memory"
	"headroom/search"
)

func findCommand(u *ui) *cli.Command {
	command := &cli.Command{
		Name:      "find",
		Usage:     "find the largest micro-batch that fits, and the plan to use",
		ArgsUsage: "CONFIG",
		Description: `CONFIG is a file, or the name of a preset; its batch.micro does not matter.
Sizes are tried with the optimizer's state in place; then whole optimizer steps
are made with the largest one that fits and with a few smaller ones, timed.
Nothing is kept.`,
		CustomHelpTemplate: jobHelp,
		Flags:              append(jobFlags(), jsonFlag("print one JSON object")),
		Action:             func(c *cli.Context) error { return findAction(u, c) },
	}
	command.BashComplete = completeFlags(command, configs.Presets)
	return command
}

func findAction(u *ui, c *cli.Context) (err error) {
	u.quiet = c.Bool("quiet")
	ctx, interrupt, done := stopping(c.Context, func(_ os.Signal, again bool) { u.findStops(again) })
	defer done()
	cfg, err := loadConfig(c)
	if err != nil {
		return err
	}
	job, err := opened(cfg, interrupt)
	if err != nil {
		return err
	}
	job.Wrap = wrapDevice
	f := &finder{u: u, o: job.Options(), interrupt: interrupt}
	f.o.Plan.Micro = 0
	if f.trainer, err = f.o.Open(ctx); err != nil {
		return fmt.Errorf("find: build the model: %w", err)
	}
	defer func() { err = errors.Join(err, f.trainer.Close()) }()
	found, err := f.find(ctx)
	if err != nil {
		return err
	}
	found.Device = job.Device()
	if c.Bool("json") {
		return u.answerJSON(found)
	}
	return u.answer(found.String())
}

// found is what find answers with.
type found struct {
	Device      string         `json:"device,omitempty"`
	Available   memory.Bytes   `json:"available"`
	Largest     timing         `json:"largest"` // the largest micro-batch that fits, as it ran after the search
	Line        search.Line    `json:"line"`    // bytes by micro-batch
	Probes      []search.Probe `json:"probes"`
	Timings     []timing       `json:"timings"` // of whole steps, largest micro-batch first
	Recommended harness.Plan   `json:"recommended"`
	Reason      string         `json:"reason"`
	Recompute   bool           `json:"recompute,omitempty"` // activations are computed again
}

// timing is what some whole optimizer steps with one plan came to.
type timing struct {
	Micro        int          `json:"micro"`
	Accumulation int          `json:"accumulation"`
	Steps        int          `json:"steps"`
	Peak         memory.Bytes `json:"peak"`
	PerSecond    float64      `json:"samples_per_second"`
}

// finder tries sizes on a trainer that is thrown away afterwards.
type finder struct {
	u         *ui
	o         harness.Options
	trainer   harness.Trainer
	interrupt <-chan struct{}
}

// find searches, runs the largest size that fits for a whole step, and times
// the plans worth knowing. A size that fitted alone and fails in a step, where
// memory is more fragmented, is searched below.
func (f *finder) find(ctx context.Context) (*found, error) {
	out := &found{Available: f.trainer.Memory().Available()}
	for limit := f.o.Plan.Share(0); ; limit = out.Largest.Micro - 1 {
		result, d, err := f.choose(ctx, limit, out)
		if err != nil {
			return nil, err
		}
		out.Probes = append(out.Probes, result.Probes...)
		out.Line, out.Recommended, out.Reason = result.Line, d.Plan, d.Reason
		out.Largest = timing{Micro: result.Fits}
		whole := harness.Plan{Effective: result.Fits, World: 1, Micro: result.Fits}
		out.Largest, err = f.time(ctx, whole, 1)
		if oom := (*memory.OutOfMemory)(nil); errors.As(err, &oom) && result.Fits > 1 {
			out.Largest.Micro = result.Fits
			f.u.fitsAlone(result.Fits, err)
			continue
		}
		if err != nil {
			return nil, err
		}
		out.Timings, err = f.curve(ctx, out.Recommended)
		return out, err
	}
}

// choose searches up to limit and asks Decide for the plan, with whatever
// remedy it names that makes a search possible.
func (f *finder) choose(ctx context.Context, limit int, out *found) (search.Result, harness.Decision, error) {
	history := harness.NewHistory(f.o.Plan)
	for {
		result, stats, err := f.search(ctx, limit)
		if err != nil && !errors.Is(err, search.ErrNothingFits) {
			return result, harness.Decision{}, err
		}
		e := harness.Event{Search: &harness.Searched{Result: result, Err: err, Stats: stats}}
		d := harness.Decide(f.o.Policy, history, e)
		history = history.Apply(e, d)
		switch d.Remedy {
		case harness.Continue:
			return result, d, nil
		case harness.Recompute:
			again, able := f.trainer.(harness.Recomputer)
			if !able {
				return result, d, &harness.GaveUp{Decision: d, Step: 1}
			}
			f.u.say("%s", d.Reason)
			again.SetRecompute(true)
			out.Recompute = true
		default:
			return result, d, &harness.GaveUp{Decision: d, Step: 1}
		}
	}
}

func (f *finder) search(ctx context.Context, limit int) (search.Result, memory.Stats, error) {
	if _, err := f.trainer.EmptyCache(); err != nil {
		return search.Result{}, memory.Stats{}, fmt.Errorf("find: empty the cache: %w", err)
	}
	stats := f.trainer.Memory()
	o := f.o.Search
	o.Max, o.Capacity = limit, stats.Available()
	result, err := search.Largest(ctx, o, func(ctx context.Context, n int) (memory.Bytes, error) {
		if err := f.stopped(ctx); err != nil {
			return 0, err
		}
		s, err := f.trainer.Probe(ctx, n)
		f.u.probed(n, s.Peak, err)
		return s.Peak, err
	})
	return result, stats, err
}

// curve times whole steps of plan and of up to three smaller micro-batches.
func (f *finder) curve(ctx context.Context, plan harness.Plan) ([]timing, error) {
	const sizes, steps = 4, 3
	var all []timing
	var seen []int
	for micro := plan.Micro; micro >= max(1, f.o.Policy.MinMicro) && len(all) < sizes; micro /= 2 {
		p := plan.WithMicro(micro)
		if slices.Contains(seen, p.Largest()) {
			continue
		}
		seen = append(seen, p.Largest())
		t, err := f.time(ctx, p, steps)
		if err != nil {
			return nil, err
		}
		f.u.timed(t)
		all = append(all, t)
	}
	return all, nil
}

// time makes up to n whole steps with p, fewer once they have taken a while; of
// more than one the first warms up and does not count.
func (f *finder) time(ctx context.Context, p harness.Plan, n int) (timing, error) {
	const enough = 5 * time.Second
	t := timing{Micro: p.Largest(), Accumulation: p.Accumulation()}
	// As a run does before a new plan: segments cut to other sizes are in its way.
	if _, err := f.trainer.EmptyCache(); err != nil {
		return t, fmt.Errorf("find: empty the cache: %w", err)
	}
	begin, samples := f.u.now(), 0
	for begun := begin; t.Steps < n && f.u.now().Sub(begun) < enough; {
		if err := f.stopped(ctx); err != nil {
			return t, err
		}
		s, err := f.trainer.Step(ctx, p)
		if err != nil {
			return t, fmt.Errorf("find: a step with %v: %w", p, err)
		}
		t.Steps++
		t.Peak = max(t.Peak, s.Memory.Peak)
		samples += s.Samples
		if t.Steps == 1 && n > 1 && f.u.now().Sub(begun) < enough {
			begin, samples = f.u.now(), 0
		}
	}
	if seconds := f.u.now().Sub(begin).Seconds(); seconds > 0 {
		t.PerSecond = float64(samples) / seconds
	}
	return t, nil
}

// stopped is the error of a user who wants no answer any more.
func (f *finder) stopped(ctx context.Context) error {
	select {
	case <-f.interrupt:
		return harness.ErrInterrupted
	case <-ctx.Done():
		return ctx.Err()
	default:
		return nil
	}
}
