package model

import (
	"bytes"
	"math"
	"testing"

	"headroom/device"
	"headroom/memory"
)

func (s subject) openGPT(t *testing.T) (*Trainer, *gpt) {
	t.Helper()
	tr, _ := s.open(t)
	g, ok := tr.net.(*gpt)
	if !ok {
		t.Fatalf("%s is a %T", s.name, tr.net)
	}
	return tr, g
}

// TestRowsOfLogitsAreAMultipleOfEight checks that the length of a row of logits is the
// smallest multiple of eight that holds the vocabulary, and that the rows of the embedding
// table beyond the vocabulary stay 0 during training.
func TestRowsOfLogitsAreAMultipleOfEight(t *testing.T) {
	for vocab, want := range map[int]int{1: 8, 7: 8, 8: 8, 9: 16, 23: 24} {
		for _, kind := range []OptimizerKind{AdamW, SGD} {
			s := tiny(GPT)
			s.spec.Optimizer.Kind = kind
			s.set = text{n: 50, tokens: 8, classes: vocab}
			for _, s := range []subject{s, s.mixed()} {
				tr, g := s.openGPT(t)
				if got := g.classes(); got != want {
					t.Errorf("%s of %d tokens: %d logits, want %d", s.name, vocab, got, want)
				}
				steps(t, tr, 3, plan(6, 4))
				table := g.tokens
				for _, x := range append(tr.st.moments, tr.st.weights, tr.st.grads) {
					for i, v := range download(t, tr, x.View(table.at, table.room))[table.n:] {
						if v != 0 {
							t.Fatalf("%s of %d tokens, %s: element %d of the padding is %v", s.name, vocab, kind, i, v)
						}
					}
				}
			}
		}
	}
}

// TestResidualStreamIsFloat32 checks that mixed precision keeps the residual
// stream in float32. Every block adds to the stream, and rounding it would lose
// small contributions.
func TestResidualStreamIsFloat32(t *testing.T) {
	for _, s := range []subject{tiny(GPT), tiny(GPT).mixed()} {
		tr, g := s.openGPT(t)
		b, err := tr.fetch(0, 3)
		if err != nil {
			t.Fatal(err)
		}
		scope := tr.scope()
		scope.takeFactors()
		if err := scope.within(func() error {
			in := b.upload(scope, 0, 3, tr.classes)
			x := scope.floats(in.rows * s.spec.Width)
			tr.dev.Fill(x, 1)
			a := g.blocks[0].forward(scope, x, in)
			stream := []device.Tensor{a.mid, g.blocks[0].output(scope, a, in)}
			for i, r := range stream {
				if r.DType != device.F32 {
					t.Errorf("%s: the stream after part %d of a block is %v", s.name, i, r.DType)
				}
			}
			for name, r := range map[string]device.Tensor{"norm": a.ln1.out, "qkv": a.qkv, "attention": a.att, "sum": a.sum, "gelu": a.act} {
				if r.DType != scope.kind {
					t.Errorf("%s: %s is %v, want %v", s.name, name, r.DType, scope.kind)
				}
			}
			return tr.dev.Sync()
		}); err != nil {
			t.Fatal(err)
		}
	}
}

// TestProbeReadsNothingUndefined checks that a probe on a device whose fresh
// memory is NaN leaves no NaN in the gradients.
func TestProbeReadsNothingUndefined(t *testing.T) {
	for _, s := range subjects() {
		tr, _ := s.open(t)
		if _, err := tr.Probe(t.Context(), 3); err != nil {
			t.Fatal(err)
		}
		for i, v := range download(t, tr, tr.st.grads) {
			if math.IsNaN(float64(v)) {
				t.Fatalf("%s: gradient %d is %v", s.name, i, v)
			}
		}
	}
}

// TestCheckpointDoesNotDependOnPrecision checks that a run may continue in
// another precision.
func TestCheckpointDoesNotDependOnPrecision(t *testing.T) {
	for _, kind := range []Kind{GPT, MLP} {
		full, _ := tiny(kind).open(t)
		mixed, _ := tiny(kind).mixed().open(t)
		steps(t, full, 2, plan(6, 4))
		var file, again bytes.Buffer
		if err := full.Save(&file); err != nil {
			t.Fatal(err)
		}
		if err := mixed.Load(bytes.NewReader(file.Bytes())); err != nil {
			t.Fatal(err)
		}
		if err := mixed.Save(&again); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(file.Bytes(), again.Bytes()) {
			t.Errorf("%s: a checkpoint in float32 differs from what mixed precision makes of it", kind)
		}
		if got := steps(t, mixed, 1, plan(6, 4)).Step; got != 3 {
			t.Errorf("%s: step %d after a checkpoint of step 2", kind, got)
		}
	}
}

// TestMixedFeaturesTakeHalf checks that features take half the memory in mixed
// precision: they are rounded on their way to the device and are never stored
// there as float32.
func TestMixedFeaturesTakeHalf(t *testing.T) {
	var slope [2]memory.Bytes
	for i, s := range []subject{tiny(MLP), tiny(MLP).mixed()} {
		s.spec.Width, s.set = 1, points{n: 50, features: 2048, classes: 2}
		tr, _ := s.open(t)
		one, err1 := tr.Probe(t.Context(), 1)
		nine, err2 := tr.Probe(t.Context(), 9)
		if err1 != nil || err2 != nil {
			t.Fatal(err1, err2)
		}
		slope[i] = (nine.Peak - one.Peak) / 8
	}
	if slope[0] < 2048*4 || slope[1] > slope[0]*6/10 {
		t.Errorf("%v a sample of 2048 features, %v in mixed precision: want 8 KiB and a bit, and half of it", slope[0], slope[1])
	}
}
