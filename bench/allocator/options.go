package main

import (
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"time"

	"headroom/model"
)

// options holds the values of the flags.
type options struct {
	write, trace, out string

	layers, width, heads, vocab, micro int
	least, most, steps                 int
	seed                               uint64

	device string
	factor float64
	budget time.Duration
}

func parseFlags(args []string) (options, error) {
	var o options
	f := flag.NewFlagSet("allocbench", flag.ContinueOnError)
	f.SetOutput(os.Stderr)
	f.StringVar(&o.write, "write", "", "record a trace to this JSON `file`; the flags from -layers to -seed describe it")
	f.IntVar(&o.layers, "layers", 12, "blocks")
	f.IntVar(&o.width, "width", 768, "channels")
	f.IntVar(&o.heads, "heads", 12, "attention heads")
	f.IntVar(&o.vocab, "vocab", 50257, "tokens known")
	f.IntVar(&o.micro, "micro", 8, "samples per step, in one micro-batch")
	f.IntVar(&o.least, "least", 64, "shortest sample, in tokens")
	f.IntVar(&o.most, "most", 1024, "longest sample, in tokens; also the position embeddings")
	f.IntVar(&o.steps, "steps", 10000, "optimizer steps")
	f.Uint64Var(&o.seed, "seed", 1, "of the lengths")
	f.StringVar(&o.trace, "trace", "", "replay this `file`")
	f.StringVar(&o.device, "device", "cuda", "cuda or host")
	f.Float64Var(&o.factor, "factor", 0, "limit the memory to this many times the trace's peak; 0 sets no limit")
	f.DurationVar(&o.budget, "budget", time.Minute, "end the replay after this time")
	f.StringVar(&o.out, "out", "", "write the result to this JSON `file` instead of standard output")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if f.NArg() > 0 {
		return o, fmt.Errorf("argument %q: only flags", f.Arg(0))
	}
	return o, o.validate()
}

// validate checks the flags that no later code checks.
func (o options) validate() error {
	var problems []error
	if (o.write == "") == (o.trace == "") {
		problems = append(problems, errors.New("give either -write or -trace"))
	}
	if o.least < 1 || o.most <= o.least {
		problems = append(problems, fmt.Errorf("-least %d, -most %d: must be at least 1, and -most above -least", o.least, o.most))
	}
	if o.steps < 1 || o.micro < 1 {
		problems = append(problems, fmt.Errorf("-steps %d, -micro %d: must be at least 1", o.steps, o.micro))
	}
	if o.vocab < 1 {
		problems = append(problems, fmt.Errorf("-vocab %d: must be at least 1", o.vocab))
	}
	if o.device != "cuda" && o.device != "host" {
		problems = append(problems, fmt.Errorf("-device %q: must be cuda or host", o.device))
	}
	if !(o.factor >= 0) || math.IsInf(o.factor, 1) {
		problems = append(problems, fmt.Errorf("-factor %v: must be at least 0", o.factor))
	}
	return errors.Join(problems...)
}

func (o options) spec() model.Spec {
	return model.Spec{
		Kind: model.GPT, Width: o.width, Layers: o.layers, Heads: o.heads, Context: o.most, Vocab: o.vocab, Seed: 1,
		Optimizer: model.Optimizer{LR: 3e-4},
	}
}
