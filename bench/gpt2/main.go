// Command gpt2 trains GPT-2 124M natively and reports losses, gradients of the
// first step, tokens per second and peak memory, for comparison with the same
// run of torch_gpt2.py.
//
//	go build -tags cuda -o bin/gpt2bench ./bench/gpt2    # the C flags are in the Makefile
//	bench/gpt2/run.sh OUTPUT [quick]                     # everything, side by side; needs Python, no Go
//
// This program and torch_gpt2.py start from the same weights, which this program
// writes. They use the same tokens, which each of them generates from the seed.
// agree.sh compares the two without a GPU, with -device host and a small model.
//
// Gradients are read from the optimizer: after one step of AdamW the first
// moment is (1−β₁) times the gradient, which -gradients saves. Undoing the
// factor costs two roundings to float32, about 1e-7 relative.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"runtime/debug"
	"time"

	"headroom/bench/output"
	"headroom/model"
)

func main() {
	o, err := parseFlags(os.Args[1:])
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err == nil {
		err = run(o)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "gpt2bench:", err)
		os.Exit(1)
	}
}

func run(o options) (err error) {
	dev, err := o.open()
	if err != nil {
		return err
	}
	set := newStream(o.seed, max(1, o.steps*o.effective), o.context, o.vocab)
	start := time.Now()
	t, err := model.New(dev, o.spec(), set)
	if err != nil {
		return errors.Join(err, dev.Close())
	}
	defer func() { err = errors.Join(err, t.Close()) }()
	r := &result{
		Tool: "headroom", Device: dev.Name(), Command: os.Args, Revision: revision(),
		Precision: o.precision, Context: o.context, Micro: o.micro, Effective: o.effective,
		Seed: o.seed, Stream: set.sum(), BuildSeconds: time.Since(start).Seconds(),
	}
	if o.weights != "" {
		if err := loadWeights(t, o.weights); err != nil {
			return fmt.Errorf("load weights: %w", err)
		}
	}
	if o.saveWeights != "" {
		if err := save(t, o.saveWeights); err != nil {
			return err
		}
	}
	if err = r.train(t, o); err == nil {
		err = errors.Join(r.probe(t, o.memory), profile(t, dev, o))
	}
	return errors.Join(err, output.JSON(o.out, r)) // also write what was measured before a failure
}

// revision returns the commit that the program was built from, with "+"
// appended if there were uncommitted changes, or "" if the commit is not known.
func revision() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	commit, changed := "", ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			commit = s.Value
		case s.Key == "vcs.modified" && s.Value == "true":
			changed = "+"
		}
	}
	return commit + changed
}
