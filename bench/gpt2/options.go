package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"headroom/cuda"
	"headroom/device"
	"headroom/device/host"
	"headroom/memory"
	"headroom/model"
)

// options holds the values of the flags.
type options struct {
	device, precision string
	limit             float64 // GiB

	layers, width, heads, vocab, positions int
	context, micro, effective              int
	steps, warmup                          int
	seed                                   uint64
	lr, decay, clip                        float64
	ramp                                   int
	memory                                 sizes

	weights, saveWeights, gradients, out string
	profile                              string
}

// sizes is the value of a flag that takes whole numbers, separated by commas.
type sizes []int

// String implements [flag.Value].
func (s *sizes) String() string {
	return strings.Trim(strings.ReplaceAll(fmt.Sprint(*s), " ", ","), "[]")
}

// Set implements [flag.Value].
func (s *sizes) Set(text string) error {
	*s = nil
	for field := range strings.SplitSeq(text, ",") {
		n, err := strconv.Atoi(field)
		if err != nil || n < 1 {
			return fmt.Errorf("%q: whole numbers above 0 with commas between", text)
		}
		*s = append(*s, n)
	}
	return nil
}

func parseFlags(args []string) (options, error) {
	var o options
	f := flag.NewFlagSet("gpt2bench", flag.ContinueOnError)
	f.SetOutput(os.Stderr)
	f.StringVar(&o.device, "device", "cuda", "cuda or host")
	f.StringVar(&o.precision, "precision", "tf32", "fp32, tf32 or bf16")
	f.Float64Var(&o.limit, "limit", 0, "most memory to use, in `GiB`; 0 is all of it, and 4 on the host")
	f.IntVar(&o.layers, "layers", 12, "blocks")
	f.IntVar(&o.width, "width", 768, "channels")
	f.IntVar(&o.heads, "heads", 12, "attention heads")
	f.IntVar(&o.vocab, "vocab", 50257, "tokens known")
	f.IntVar(&o.positions, "positions", 1024, "position embeddings; at least -context")
	f.IntVar(&o.context, "context", 512, "tokens per sample")
	f.IntVar(&o.micro, "micro", 16, "samples a micro-batch")
	f.IntVar(&o.effective, "effective", 0, "samples per step; 0 is one micro-batch")
	f.IntVar(&o.steps, "steps", 100, "optimizer steps")
	f.IntVar(&o.warmup, "warmup", 10, "steps left out of the timing")
	f.Uint64Var(&o.seed, "seed", 1, "of weights and tokens")
	f.Float64Var(&o.lr, "lr", 3e-4, "learning rate")
	f.IntVar(&o.ramp, "lr-warmup", 10, "steps over which the learning rate rises")
	f.Float64Var(&o.decay, "decay", 0.1, "weight decay")
	f.Float64Var(&o.clip, "clip", 1, "largest norm of the gradients; 0 does not clip")
	f.Var(&o.memory, "memory", "after the steps, measure the memory of micro-batches of these `sizes`, such as 4,8")
	f.StringVar(&o.weights, "weights", "", "take the initial weights from this safetensors `file`")
	f.StringVar(&o.saveWeights, "save-weights", "", "write the initial weights to this safetensors `file`")
	f.StringVar(&o.gradients, "gradients", "", "write the state after the first step to this safetensors `file`; its adamw.m.* are moment_scale × the gradients")
	f.StringVar(&o.profile, "profile", "", "time one more step by kernels, and write the table to this Markdown `file`")
	f.StringVar(&o.out, "out", "", "write the result to this JSON `file` instead of standard output")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if f.NArg() > 0 {
		return o, fmt.Errorf("argument %q: only flags", f.Arg(0))
	}
	if o.effective == 0 {
		o.effective = o.micro
	}
	return o, o.validate()
}

// validate checks the flags that no later code checks.
func (o options) validate() error {
	var problems []error
	if o.steps < 0 || o.warmup < 0 {
		problems = append(problems, fmt.Errorf("-steps %d, -warmup %d: neither may be negative", o.steps, o.warmup))
	}
	if o.context < 1 || o.context > o.positions {
		problems = append(problems, fmt.Errorf("-context %d: must be 1 to -positions %d", o.context, o.positions))
	}
	if o.micro < 1 || o.effective < 1 {
		problems = append(problems, fmt.Errorf("-micro %d, -effective %d: must be at least 1", o.micro, o.effective))
	}
	if o.vocab < 1 || o.vocab > 1<<20 {
		problems = append(problems, fmt.Errorf("-vocab %d: must be 1 to %d", o.vocab, 1<<20))
	}
	if !slices.Contains([]string{"fp32", "tf32", "bf16"}, o.precision) || o.device == "host" && o.precision == "tf32" {
		problems = append(problems, fmt.Errorf("-precision %s: must be fp32 or bf16, or on a GPU tf32", o.precision))
	}
	if o.profile != "" && o.device != "cuda" {
		problems = append(problems, fmt.Errorf("-profile with -device %s: only a GPU can be timed by kernels", o.device))
	}
	return errors.Join(problems...)
}

func (o options) open() (device.Device, error) {
	limit := memory.Bytes(o.limit * float64(memory.GiB))
	switch o.device {
	case "cuda":
		return cuda.Open(cuda.Options{Precision: cuda.Precision(o.precision), Limit: limit})
	case "host":
		if limit == 0 {
			limit = 4 * memory.GiB
		}
		return host.Open(host.Options{Capacity: limit})
	}
	return nil, fmt.Errorf("-device %q: cuda or host", o.device)
}

func (o options) spec() model.Spec {
	return model.Spec{
		Kind: model.GPT, Width: o.width, Layers: o.layers, Heads: o.heads, Context: o.positions, Vocab: o.vocab, Seed: o.seed,
		Mixed:     o.precision == "bf16",
		Optimizer: model.Optimizer{LR: o.lr, WeightDecay: o.decay, Clip: o.clip},
		Schedule:  model.Schedule{Warmup: o.ramp},
	}
}
