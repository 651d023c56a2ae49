// Package model trains models in Go on any [device.Device]: a decoder-only
// transformer like GPT-2 ([GPT]) and a multi-layer perceptron ([MLP]). A [Trainer]
// implements harness.Trainer.
//
// Start with [New]:
//
//	set, err := data.OpenText(data.TextOptions{Path: "src", Glob: "*.go", Context: 64})
//	dev, err := host.Open(host.Options{Capacity: memory.GiB})
//	t, err := model.New(dev, model.Spec{
//		Kind: model.GPT, Width: 64, Layers: 2, Heads: 4, Seed: 1,
//		Optimizer: model.Optimizer{LR: 4e-3, WeightDecay: 0.1, Clip: 1},
//		Schedule:  model.Schedule{Kind: model.Cosine, Warmup: 30, Steps: 200, Min: 4e-4},
//	}, set)
//	report, err := t.Step(ctx, recovery.Plan{Effective: 32, World: 1, Micro: 8})
//
// # What a step promises
//
// A step is a transaction. Everything that can fail comes first and writes only
// gradients, which are scratch between steps; the update comes last and allocates
// nothing. So a failed allocation, a cancelled context, a damaged sample or a loss
// that is not a number leave weights, optimizer state and position unchanged, bit
// for bit, and no tensor behind.
//
// How a step is cut into micro-batches does not change what it computes, except
// for the order of floating-point sums. Three things ensure that: the loss is
// the mean over all targets of the step that count, which are counted before the
// first micro-batch runs; gradients add up in one place; and dropout is drawn
// from (seed, step, place in the model, number of the sample in the step), so
// there is no random state to put back.
//
// The same samples, plan and device give the same bits, with recomputation or
// without.
//
// # Memory
//
// Weights, gradients and the optimizer's moments are allocated by New and stay:
// see [Spec.Requirements]. A micro-batch adds memory in proportion to its
// samples. A block of a GPT keeps 16·T·C floats per sample plus 4·T + H·T for
// normalisation and attention; with recomputation, only T·C. Gradients of
// activations take the place of the activations once those are done with.
//
// # Parameters
//
// A GPT names its parameters as GPT-2 does in Transformers, without the leading
// "transformer.", and keeps its layout: weights of linear layers are in×out, so
// that y = x·W + b. V is the vocabulary, C the width, T the context:
//
//	wte.weight               V×C   tokens, and transposed the output layer
//	wpe.weight               T×C   positions
//	h.0.ln_1.weight, .bias   C
//	h.0.attn.c_attn.weight   C×3C  query, key, value, each with the heads in order
//	h.0.attn.c_attn.bias     3C
//	h.0.attn.c_proj.weight   C×C
//	h.0.attn.c_proj.bias     C
//	h.0.ln_2.weight, .bias   C
//	h.0.mlp.c_fc.weight      C×4C
//	h.0.mlp.c_fc.bias        4C
//	h.0.mlp.c_proj.weight    4C×C
//	h.0.mlp.c_proj.bias      C
//	ln_f.weight, .bias       C
//
// There is no dropout inside attention, whose probabilities are never in memory.
// An MLP has fc.0.weight (features×C), fc.0.bias, fc.1.weight (C×C), … and
// head.weight (C×classes), head.bias.
//
// # Checkpoints
//
// [Trainer.Save] writes one safetensors file, F32 and little-endian, from which any
// device can continue: the weights under the names above, each moment of the optimizer
// under the same name with a prefix ("adamw.m.", "adamw.v.", "sgd.momentum."), and as
// metadata the step, the position and what the model is (model.kind, model.width, …).
// A last tensor, headroom.crc32c, shows whether the file is as it was written.
package model
