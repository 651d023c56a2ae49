package model

import (
	"fmt"
	"testing"

	"headroom/device"
	"headroom/device/devicetest"
	"headroom/device/host"
	"headroom/memory"
	"headroom/model/data"
	"headroom/recovery"
	"headroom/runs"
)

// text is a set of samples in which each token is a function of the one before it,
// its position and the sample's index. Samples end in padding of different lengths,
// so that the number of targets per sample differs.
type text struct{ n, tokens, classes int }

func (s text) Len() int            { return s.n }
func (s text) Shape() data.Shape   { return data.Shape{Tokens: s.tokens, Classes: s.classes} }
func (s text) Fingerprint() string { return fmt.Sprint("text ", s.n, s.tokens, s.classes) }

func (s text) Sample(i int, x *data.Sample) error {
	length := s.tokens - i*7%s.tokens // 1 to tokens
	at := i * 31 % s.classes
	for t := range s.tokens {
		next := (at*at + 3*t + i) % s.classes
		x.Tokens[t], x.Targets[t] = int32(at), int32(next)
		if t >= length {
			x.Tokens[t], x.Targets[t] = 0, device.IgnoreIndex
		}
		at = next
	}
	return nil
}

// points is a set of features. Each of the first features of a sample stands for one
// class, and the sample's class is the one whose feature is the largest.
type points struct{ n, features, classes int }

func (s points) Len() int { return s.n }
func (s points) Shape() data.Shape {
	return data.Shape{Features: s.features, Classes: s.classes}
}
func (s points) Fingerprint() string { return fmt.Sprint("points ", s.n, s.features, s.classes) }

func (s points) Sample(i int, x *data.Sample) error {
	class := 0
	for f := range s.features {
		x.Features[f] = float32(normal(mix(uint64(i)), uint64(f)))
		if f < s.classes && x.Features[f] > x.Features[class] {
			class = f
		}
	}
	x.Targets[0] = int32(class)
	return nil
}

// broken is a set whose samples are tampered with.
type broken struct {
	data.Set
	tamper func(x *data.Sample) error
}

func (s broken) Sample(i int, x *data.Sample) error {
	if err := s.Set.Sample(i, x); err != nil {
		return err
	}
	return s.tamper(x)
}

// subject is a model small enough to be trained hundreds of times in a test.
type subject struct {
	name string
	spec Spec
	set  data.Set
}

func tiny(kind Kind) subject {
	o := Optimizer{LR: 0.01, WeightDecay: 0.1, Clip: 1}
	if kind == MLP {
		return subject{"mlp", Spec{
			Kind: MLP, Width: 16, Layers: 2, Dropout: 0.2, Seed: 5, Optimizer: o,
			Schedule: Schedule{Kind: Linear, Warmup: 2, Steps: 20},
		}, points{n: 50, features: 12, classes: 5}}
	}
	return subject{"gpt", Spec{
		Kind: GPT, Width: 16, Layers: 2, Heads: 2, Dropout: 0.2, Seed: 5, Optimizer: o,
		Schedule: Schedule{Kind: Cosine, Warmup: 2, Steps: 20, Min: 0.001},
	}, text{n: 50, tokens: 8, classes: 23}}
}

// mixed returns s in mixed precision.
func (s subject) mixed() subject {
	s.name += " mixed"
	s.spec.Mixed = true
	return s
}

// near returns the largest distance allowed between the weights of two runs whose
// steps were cut in different ways.
func (s subject) near() float64 {
	switch {
	case !s.spec.Mixed:
		return 1e-5
	case onGPU:
		return 2e-2 // cuBLAS sums products of other shapes in another order, and rounding to bfloat16 amplifies the difference
	}
	return 1e-3 // halfway between two bfloat16 values, the last bit of a sum decides to which of them a weight is rounded
}

func subjects() []subject {
	return []subject{tiny(GPT), tiny(MLP), tiny(GPT).mixed(), tiny(MLP).mixed()}
}

// openDevice opens the device that the tests of this package train on: the embedded
// device, unless gpu_test.go puts a GPU in its place.
var openDevice = func(capacity memory.Bytes) (device.Device, error) {
	return host.Open(host.Options{Capacity: capacity, Poison: true})
}

// onGPU reports whether openDevice opens a GPU.
var onGPU = false

func openFaulty(t testing.TB) *devicetest.Faulty {
	t.Helper()
	d, err := openDevice(512 * memory.MiB)
	if err != nil {
		t.Fatal(err)
	}
	return devicetest.NewFaulty(d)
}

// open builds the subject on a fresh device. When the test ends, open closes
// the device and checks that nothing is left on it.
func (s subject) open(t testing.TB) (*Trainer, *devicetest.Faulty) {
	t.Helper()
	d := openFaulty(t)
	tr, err := New(d, s.spec, s.set)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := tr.Close(); err != nil {
			t.Error(err)
		}
		if d.Live() != 0 {
			t.Errorf("%d tensors left after Close", d.Live())
		}
	})
	return tr, d
}

func plan(effective, micro int) recovery.Plan {
	return recovery.Plan{Effective: effective, World: 1, Micro: micro}
}

// steps runs n steps and fails the test if one of them fails.
func steps(t testing.TB, tr *Trainer, n int, p recovery.Plan) (last runs.StepReport) {
	t.Helper()
	for range n {
		var err error
		if last, err = tr.Step(t.Context(), p); err != nil {
			t.Fatal(err)
		}
	}
	return last
}
