package model

import (
	"fmt"

	"headroom/device"
	"headroom/model/data"
)

// batch holds all samples of a step in host memory. Holding them together lets
// every target be checked and counted before the first micro-batch runs.
type batch struct {
	shape    data.Shape
	tokens   []int32
	features []float32
	targets  []int32
	numbers  []int32 // 0, 1, 2, …: the number of each sample within the step
	counted  int     // number of targets other than device.IgnoreIndex
}

func newBatch(shape data.Shape, samples int) *batch {
	b := &batch{
		shape:    shape,
		tokens:   make([]int32, samples*shape.Tokens),
		features: make([]float32, samples*shape.Features),
		targets:  make([]int32, samples*shape.Targets()),
		numbers:  make([]int32, samples),
	}
	for i := range b.numbers {
		b.numbers[i] = int32(i)
	}
	return b
}

// sample returns sample i as slices into b.
func (b *batch) sample(i int) data.Sample {
	t, f, y := b.shape.Tokens, b.shape.Features, b.shape.Targets()
	return data.Sample{
		Tokens:   b.tokens[i*t : (i+1)*t],
		Features: b.features[i*f : (i+1)*f],
		Targets:  b.targets[i*y : (i+1)*y],
	}
}

// fetch reads the given number of samples of the stream, starting at position
// first. It returns an error if a token or target is outside the model's range,
// or if no target counts.
func (t *Trainer) fetch(first int64, samples int) (*batch, error) {
	b := newBatch(t.set.Shape(), samples)
	for i := range samples {
		_, index := t.order.At(first + int64(i))
		s := b.sample(i)
		if err := t.set.Sample(index, &s); err != nil {
			return nil, fmt.Errorf("read sample %d: %w", index, err)
		}
		if err := t.checkSample(s); err != nil {
			return nil, fmt.Errorf("sample %d: %w", index, err)
		}
		for _, y := range s.Targets {
			if y != device.IgnoreIndex {
				b.counted++
			}
		}
	}
	if b.counted == 0 {
		return nil, fmt.Errorf("none of the %d samples from position %d on has a target that counts", samples, first)
	}
	return b, nil
}

func (t *Trainer) checkSample(s data.Sample) error {
	for i, x := range s.Tokens {
		if x < 0 || int(x) >= t.classes {
			return fmt.Errorf("token %d at position %d: must be 0 to %d", x, i, t.classes-1)
		}
	}
	for i, y := range s.Targets {
		if y != device.IgnoreIndex && (y < 0 || int(y) >= t.classes) {
			return fmt.Errorf("target %d at position %d: must be 0 to %d, or %d for a target that does not count", y, i, t.classes-1, device.IgnoreIndex)
		}
	}
	return nil
}

// upload copies samples [from, from+n) to the device. The tensors belong to s.
func (b *batch) upload(s *scope, from, n, classes int) input {
	y := b.shape.Targets()
	in := input{n: n, rows: n * y, classes: classes}
	if b.shape.Tokens > 0 {
		in.data = s.ints(b.tokens[from*b.shape.Tokens:][:n*b.shape.Tokens])
	} else {
		features := b.features[from*b.shape.Features:][:n*b.shape.Features]
		in.data = s.activations(len(features))
		s.dev.Upload(in.data, features)
	}
	in.targets = s.ints(b.targets[from*y:][:n*y])
	in.samples = s.ints(b.numbers[from:][:n])
	return in
}

// free frees the tensors of the micro-batch.
func (in input) free(s *scope) { s.free(in.data, in.targets, in.samples) }
