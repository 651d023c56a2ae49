package device

import "headroom/memory"

// Device is one device on which a model can be trained. It is not safe for
// concurrent use: one goroutine owns it from Open to Close.
type Device interface {
	// Name returns the device's name, such as "host" or "NVIDIA H200", for people
	// to read.
	Name() string

	TensorAllocator
	Copier
	Linear
	Elementwise
	Network
	Optimizer

	// Sync waits for every operation called so far and returns the first error
	// since the last Sync, or nil. After an error that leaves the device unusable,
	// every later Sync returns that error again.
	Sync() error
	// Close waits for the operations called so far, then gives all memory back.
	// Tensors of the device are invalid afterwards.
	Close() error
}

// TensorAllocator allocates the memory of a device. It keeps freed memory in a cache.
type TensorAllocator interface {
	// Alloc returns a tensor of n elements, n > 0, with undefined contents. The tensor
	// belongs to the caller until Free. If there is not enough memory even after the
	// cache has been emptied, the error is a *memory.OutOfMemoryError whose Phase and
	// Micro are not set.
	Alloc(n int, t DType) (Tensor, error)
	// Free gives a tensor back to the cache. It panics on a tensor that is not
	// allocated, or on a view.
	Free(t Tensor)
	// EmptyCache gives every wholly unused segment back to the device and returns
	// the number of bytes given back.
	EmptyCache() (memory.Bytes, error)
	// Stats returns the current statistics.
	Stats() memory.Stats
	// ResetPeak sets the peaks to the current amounts.
	ResetPeak()
}

// Copier moves data. An upload has copied src by the time it returns; a
// download waits for every operation called before it. Source and destination
// must have equal lengths. Floats are converted from one type to the other, and
// rounded if necessary.
type Copier interface {
	Upload(dst Tensor, src []float32)
	UploadInts(dst Tensor, src []int32)
	Download(dst []float32, src Tensor) error
	// Copy copies src into dst. Each of them is F32 or BF16, or both are I32.
	Copy(dst, src Tensor)
}

// Linear holds the operations of a linear layer: the matrix product and the bias.
type Linear interface {
	// MatMul computes c = op(a)·op(b) + beta·c where c is m×n, op(a) is m×k and
	// op(b) is k×n; op transposes the stored matrix if p says so. beta is 0 (c is
	// not read) or 1. a and b are both F32 or both BF16; c is of the same type or
	// F32.
	MatMul(c, a, b Tensor, p MatMul)
	// AddBias computes x[r,·] += b for every row; x is rows×cols, F32 or BF16; b
	// is cols, F32.
	AddBias(x, b Tensor, rows, cols int)
	// BiasGrad computes db += Σ_r dy[r,·]; dy is rows×cols, F32 or BF16; db is
	// cols, F32.
	BiasGrad(db, dy Tensor, rows, cols int)
}

// MatMul holds the parameters of a matrix product; see [Linear.MatMul].
type MatMul struct {
	M, N, K        int
	TransA, TransB bool
	Beta           float32
}

// Elementwise operations read and write tensors of the same length, except for the
// samples of Dropout.
type Elementwise interface {
	// Fill sets every element of x, which is F32, to v.
	Fill(x Tensor, v float32)
	// Add computes y += x. Each may be F32 or BF16.
	Add(y, x Tensor)
	// GELU computes y = 0.5·x·(1+tanh(√(2/π)·(x+0.044715·x³))), the "tanh"
	// form of PyTorch and GPT-2. y may be x. Both are F32 or both BF16.
	GELU(y, x Tensor)
	// GELUGrad computes dx = dy·GELU′(x). dx may be dy. All are F32 or all BF16.
	GELUGrad(dx, x, dy Tensor)
	// Dropout computes y = x·keep/(1−P), where keep is 0 or 1 for each element and is
	// drawn as type [Dropout] describes. The same call, applied to the gradient, is the
	// backward pass. y may be x. x and y may each be F32 or BF16; samples is I32 and
	// holds the number of each sample.
	Dropout(y, x, samples Tensor, d Dropout)
}

// Dropout says which elements are dropped. The draw for an element is a
// function of (Seed, Step, Site, its sample's number, its index in the sample)
// and nothing else, so it does not depend on how a step is cut into
// micro-batches.
type Dropout struct {
	P    float32 // probability of dropping an element, in [0, 1)
	Seed uint64
	Step uint32 // optimizer step
	Site uint32 // which of the model's dropouts
	Each int    // elements per sample; x has Each elements for every element of samples
}

// Network holds the operations that neural networks need beyond those of
// [Linear] and [Elementwise]. In shapes, B is the number of samples, T the
// number of positions, C the number of channels, and V the number of entries in
// the vocabulary. Operands are F32 unless stated otherwise.
type Network interface {
	// Embed computes out[b,t,·] = tokens[tok[b,t],·] + positions[t,·].
	// out is B×T×C, tok is B×T of I32, tokens is V×C, positions is T'×C, T' ≥ T.
	Embed(out, tok, tokens, positions Tensor, s Embed)
	// EmbedGrad adds to the gradients of both tables, in an order that does not
	// vary from run to run.
	EmbedGrad(dtokens, dpositions, dout, tok Tensor, s Embed)

	// LayerNorm normalises each row of x, which is rows×cols, with the biased variance,
	// then scales by gamma and shifts by beta. mean and rstd have one element per row and
	// are kept for the gradient. out and x may each be BF16.
	LayerNorm(out, mean, rstd, x, gamma, beta Tensor, rows, cols int, eps float32)
	// LayerNormGrad computes dx and adds to dgamma and dbeta. dx may be dy. dx and
	// dy are both F32 or both BF16; x may be either.
	LayerNormGrad(dx, dgamma, dbeta, dy, x, gamma, mean, rstd Tensor, rows, cols int)

	// Attention is causal scaled dot-product attention with scale 1/√D. qkv is
	// B×T×3×H×D, out is B×T×H×D. lse is B×H×T and keeps log Σ exp of the scores
	// for the gradient, so that memory grows with T, not T². qkv and out may both
	// be BF16. A device may then refuse heads of more than 128 channels; Sync
	// returns the error.
	Attention(out, lse, qkv Tensor, s Attention)
	// AttentionGrad computes dqkv. delta, B×H×T, is scratch. delta and lse are
	// F32; the other operands are all F32 or all BF16.
	AttentionGrad(dqkv, delta, dout, qkv, out, lse Tensor, s Attention)

	// CrossEntropy computes loss[r] = −log softmax(logits[r,·])[target[r]] and
	// replaces logits, which may be BF16, by the gradient of scale·Σ loss. Rows of
	// logits may be longer than classes: the extra elements have no effect and
	// have gradient 0. target is I32; rows with a target of IgnoreIndex have loss
	// and gradient 0. Any other target must be in [0, classes), or Sync returns an
	// error.
	CrossEntropy(loss, logits, target Tensor, rows, classes int, scale float32)
	// Sum computes dst[0] = Σ x in an order that does not vary from run to run.
	Sum(dst, x Tensor)
}

// IgnoreIndex is the target of a position that does not count toward the loss,
// as in PyTorch.
const IgnoreIndex = -100

// Embed is the shape of an embedding.
type Embed struct{ B, T, C, V int }

// Attention is the shape of an attention: B samples, T positions, H heads of D
// channels.
type Attention struct{ B, T, H, D int }

// Optimizer updates weights in place. All tensors are F32 and have the same length,
// except that dst of SumSquares has one element.
type Optimizer interface {
	// SumSquares computes dst[0] += Σ x².
	SumSquares(dst, x Tensor)
	// AdamW performs one step of Adam with decoupled weight decay (Loshchilov
	// and Hutter, 2019, algorithm 2): m and v are the moments, and g is
	// multiplied by GradScale as it is read.
	AdamW(w, g, m, v Tensor, p AdamW)
	// SGD performs one step of stochastic gradient descent in PyTorch's form:
	// d = GradScale·g + WeightDecay·w; m = Momentum·m + d; w −= LR·m.
	SGD(w, g, m Tensor, p SGD)
}

// AdamW holds the parameters of one AdamW step; Step counts from 1.
type AdamW struct {
	LR, Beta1, Beta2, Eps, WeightDecay, GradScale float32
	Step                                          int
}

// SGD holds the parameters of one SGD step.
type SGD struct {
	LR, Momentum, WeightDecay, GradScale float32
}
