// Command allocator replays the allocations of a training run on headroom's
// allocator. The results can be compared with those of replay.py, which replays
// the same trace on PyTorch's allocator and on the driver.
//
//	go build -tags cuda -o bin/allocbench ./bench/allocator    # the C flags are in the Makefile
//	bench/allocator/run.sh bin/allocbench OUTPUT               # everything, side by side; needs Python, no Go
//
// The trace is that of GPT-2. One step of the model is recorded at each of two
// sequence lengths. Every tensor's size is affine in the length, which is
// checked, so the two recordings determine the steps of all other lengths. Each
// of 10 000 steps draws its own length between 64 and 1024.
//
//	allocbench -write trace.json
//	allocbench -trace trace.json -factor 1.15 -out result.json
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"

	"headroom/bench/output"
	"headroom/cuda"
	"headroom/device"
	"headroom/device/host"
	"headroom/memory"
)

// version is set by the linker.
var version = "development"

func main() {
	o, err := parseFlags(os.Args[1:])
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err == nil {
		err = run(o)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "allocbench:", err)
		os.Exit(1)
	}
}

func run(o options) error {
	if o.write != "" {
		t, err := o.record()
		if err != nil {
			return err
		}
		return t.write(o.write)
	}
	t, err := readTrace(o.trace)
	if err != nil {
		return err
	}
	r, err := o.replay(t)
	if err != nil {
		return err
	}
	return output.JSON(o.out, r)
}

// record returns the trace that the options describe.
func (o options) record() (t *trace, err error) {
	r, err := newRecording(o.spec(), o.micro)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	middle := (o.least + o.most) / 2
	ops, err := r.ops(o.least, o.most, middle, middle+1)
	if err != nil {
		return nil, err
	}
	t = &trace{
		Model:   fmt.Sprintf("GPT-2, %d layers, width %d, vocabulary %d, micro-batch %d, %d to %d tokens", o.layers, o.width, o.vocab, o.micro, o.least, o.most),
		State:   r.state,
		Slots:   len(ops) / 2,
		Ops:     ops,
		Lengths: drawLengths(o.seed, o.steps, o.least, o.most),
	}
	t.Peak = t.peak()
	return t, t.validate()
}

// replay replays t on the device that the options describe, and returns the
// measurements.
func (o options) replay(t *trace) (r *result, err error) {
	limit := memory.Bytes(o.factor * float64(t.Peak))
	dev, err := o.open(limit)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	r, err = t.measure(dev, o.budget)
	if err != nil {
		return nil, err
	}
	r.Allocator, r.Device, r.Version, r.Limit, r.Factor = "headroom", dev.Name(), version, limit, o.factor
	return r, nil
}

func (o options) open(limit memory.Bytes) (device.Device, error) {
	if o.device == "cuda" {
		return cuda.Open(cuda.Options{Limit: limit})
	}
	if limit == 0 {
		limit = plenty
	}
	return host.Open(host.Options{Capacity: limit})
}
