// Package host is the embedded device: the processor and a part of its memory,
// up to a limit that you choose, so that training, running out of memory and
// recovering can be tried on any machine. It is a device like any other, not a
// stand-in for one: its memory is mapped from the operating system and given
// back to it, and it passes the same conformance suite as a GPU.
//
// Start with [Open]. [Device.SetForeign] plays another process that takes
// memory in the middle of a run.
//
// Results depend on the arguments alone, never on Options.Workers or
// GOMAXPROCS: every element is computed by one goroutine in one order, and sums
// over rows are cut at fixed places and combined in order. A matrix product
// moreover does not depend on how many rows it has, so that cutting a batch
// differently leaves the activations of a sample unchanged, bit for bit.
//
// Operations run when they are called. They use no device memory, only a little
// scratch on Go's heap (packed panels of a matrix product, the tile of an
// attention, partial sums), which is kept from call to call. They compute in
// float32 whatever the operands are: scratch then also holds every BF16 operand
// as float32, so BF16 saves device memory, which is what it is there to show,
// but saves the process neither time nor memory.
package host
