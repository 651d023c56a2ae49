// Package devicetest is the conformance suite that every device must pass. A
// device's own tests call [Run] with a way to open it and the tolerance of its
// arithmetic, and its benchmarks call [Bench].
//
// Every operation, forward and gradient, is compared with a float64 reference
// written straight from its formula, on fresh random numbers. The references of
// the gradients are themselves checked against central differences. The seed is
// logged; HEADROOM_SEED in the environment repeats a run.
//
// Operands lie in larger tensors, once aligned and once off by one element, so
// that a write beside an output shows, as does a write to an input. Outputs
// begin as NaN, and NaN never passes, so that a value read before it was written
// or never written at all shows too. Each call is made twice and must give the
// same bits.
//
// Beyond the numbers it checks memory (alignment, statistics, reuse, giving
// back, running out), dropout's bits and its independence of how a step is cut,
// wrong shapes, and what Sync promises. It uses nothing but [device.Device].
package devicetest
