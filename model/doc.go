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
// A step is a transaction. The part that can fail comes first and writes only gradients,
// whose values are not needed between steps. The update comes last and allocates nothing.
// So after a failed allocation, a cancelled context, a damaged sample or a loss that is NaN
// or infinite, weights, optimizer state and position are unchanged, bit for bit, and no
// tensor stays allocated.
//
// How a step is cut into micro-batches does not change what it computes, except
// for the order of floating-point sums. There are three reasons:
//
//   - The loss is the mean over all targets of the step that are not
//     [device.IgnoreIndex]. They are counted before the first micro-batch runs.
//   - The gradients of all micro-batches are added up in one place.
//   - Dropout is drawn from (seed, step, place in the model, number of the sample in
//     the step), so a repeated step needs no random-number state restored.
//
// The same samples, plan and device give the same result, bit for bit, with or
// without recomputation.
//
// # Memory
//
// Weights, gradients and the optimizer's moments are allocated by New and stay: see
// [Spec.Requirements]. A micro-batch adds memory in proportion to its samples. With T the
// context, C the width and H the number of heads, a block of a GPT keeps 16·T·C floats per
// sample, plus 4·T + H·T for normalisation and attention; with recomputation, it keeps only
// T·C. The gradient of an activation overwrites the activation as soon as the activation is
// no longer needed.
//
// # Parameters
//
// A GPT names its parameters as GPT-2 does in Transformers, without the leading
// "transformer.", and uses the same layout: weights of linear layers are in×out, so
// that y = x·W + b. V is the size of the vocabulary, C the width, T the context:
//
//	wte.weight               V×C   token embedding; its transpose is the output layer
//	wpe.weight               T×C   position embedding
//	h.0.ln_1.weight, .bias   C
//	h.0.attn.c_attn.weight   C×3C  query, key and value; within each, the heads in order
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
// There is no dropout inside attention, because the attention probabilities are
// never stored in memory.
//
// An MLP has fc.0.weight (features×C), fc.0.bias, fc.1.weight (C×C), … and
// head.weight (C×classes), head.bias.
//
// # Checkpoints
//
// [Trainer.Save] writes one safetensors file, F32 and little-endian, from which any device
// can continue. It holds the weights under the names above, and each moment of the
// optimizer under the same name with a prefix ("adamw.m.", "adamw.v.", "sgd.momentum.").
// The metadata holds the step, the position and the settings that a run must share to
// continue from the file (model.kind, model.width, …). The last tensor, headroom.crc32c, is
// a checksum of everything before it.
package model
