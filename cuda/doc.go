// Package cuda is the GPU: a [device.Device] over NVIDIA's driver, through
// gorgonia.org/cu, with matrix products by cuBLAS, both opened at run time.
//
// Start with [Open]. Operations run in order on one stream, some time after the
// call; errors surface at Sync. Any goroutine may use the device, one at a time:
// every call makes the context current on its thread.
//
// Attention runs as batched matrix products over chunks of the scores, with the
// causal softmax fused between them; only log Σ exp is kept for the backward
// pass, so its memory grows with the sequence, not with its square.
//
// The default path is deterministic: no floating-point atomics, reductions in an
// order that depends on sizes alone.
//
// Without the build tag cuda, Open returns an error that says that the program
// was built without GPU support.
package cuda
