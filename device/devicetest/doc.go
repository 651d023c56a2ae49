// Package devicetest is the conformance suite that every device must pass. A
// device's own tests call [Run] and, for mixed precision, [RunMixed] with a
// function that opens the device and the tolerance of its arithmetic; its
// benchmarks call [Bench].
//
// Every operation, forward and gradient, is compared with a float64 reference
// written straight from its formula, on fresh random numbers that the operands'
// types can hold. The references of the gradients are themselves checked
// against central differences. The seed is logged; to repeat a run, set
// HEADROOM_SEED to it.
//
// In mixed precision every operand that may be BF16 is BF16. Where operands
// need not have the same type, every combination is tried. Results stored as
// BF16 must be within the given tolerance; they must also be unbiased, which
// they would not be if they were truncated instead of rounded. Results stored
// as F32 must be as good as if all operands were F32.
//
// Operands lie in larger tensors, once aligned and once off by one element. The
// suite thereby finds a write outside an output and a write to an input.
// Outputs begin as NaN, and NaN never passes, so the suite also finds a value
// that was read before it was written, or never written at all. Each call is
// made twice and must give the same bits.
//
// Besides the results, the suite checks memory: alignment, statistics, reuse,
// release and exhaustion. It also checks the bits of rounding, the bits of
// dropout, which must not depend on how a step is cut, wrong shapes, and the
// guarantees of Sync. It uses nothing but [device.Device].
//
// [NewFaulty] is for the tests of code that uses a device: it fails the
// allocations that a test chooses. [Seed] returns the seed for the random
// numbers of such tests.
package devicetest
