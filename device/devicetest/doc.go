// Package devicetest is the conformance suite that every device must pass. A
// device's own tests call [Run] and, for mixed precision, [RunMixed] with a way
// to open it and the tolerance of its arithmetic; its benchmarks call [Bench].
//
// Every operation, forward and gradient, is compared with a float64 reference
// written straight from its formula, on fresh random numbers that the operands'
// types can hold. The references of the gradients are themselves checked
// against central differences. The seed is logged; HEADROOM_SEED in the
// environment repeats a run.
//
// In mixed precision every operand that may be BF16 is, and where operands need
// not agree every combination is tried. Results stored as BF16 must be within
// the given tolerance and not biased, as they would be if they were truncated
// instead of rounded; results stored as F32 must be as good as if all operands
// were F32.
//
// Operands lie in larger tensors, once aligned and once off by one element, so
// that a write outside an output is found, as is a write to an input. Outputs
// begin as NaN, and NaN never passes, so that a value read before it was
// written, or never written at all, is found too. Each call is made twice and
// must give the same bits.
//
// Beyond the numbers it checks memory (alignment, statistics, reuse, giving
// back, running out), dropout's bits and its independence of how a step is cut,
// the bits of rounding, wrong shapes, and what Sync promises. It uses nothing
// but [device.Device].
//
// [NewFaulty] is for the tests of code that uses a device: it fails the
// allocations that a test chooses. [Seed] is the seed of their random numbers.
package devicetest
