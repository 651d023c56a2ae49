// Package cuda implements [device.Device] on NVIDIA GPUs. It calls NVIDIA's
// driver through gorgonia.org/cu, and cuBLAS for matrix products. It opens both
// libraries at run time.
//
// Start with [Open]. Operations run in order on one stream, some time after the
// call; errors surface at Sync. Any goroutine may use the device, but only one
// at a time; every call makes the context current on its thread.
//
// Attention in float32 runs as batched matrix products over chunks of the
// scores, with a fused causal softmax between them. Attention in bfloat16 has
// kernels of its own, which never store the scores. Both keep only log Σ exp
// for the backward pass, so memory grows with the length of the sequence, not
// with its square.
//
// Results are deterministic: there are no floating-point atomics, and reductions
// run in an order that depends on sizes alone.
//
// Without the build tag cuda, Open returns an error that says that the program
// was built without GPU support.
package cuda
