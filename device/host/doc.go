// Package host is the embedded device: it consists of the processor and a part
// of the machine's memory, up to a limit that you choose, so that training,
// running out of memory and recovering can be tried on any machine. It is a
// device like any other, not a stand-in for one: its memory is mapped from the
// operating system and given back to it, and it passes the same conformance
// suite as a GPU.
//
// Start with [Open]. [Device.SetForeign] simulates another process that takes
// memory in the middle of a run.
//
// Results depend on the arguments alone, never on Options.Workers or
// GOMAXPROCS: every element is computed by one goroutine in one order, and sums
// over rows are cut at fixed places and combined in order. Moreover, a row of a
// matrix product does not depend on the number of rows, so that cutting a batch
// differently leaves the activations of a sample unchanged, bit for bit.
//
// Operations run when they are called. They use no device memory, only a little
// scratch on Go's heap (packed panels of a matrix product, the tile of an
// attention, partial sums), which is kept from call to call. They compute in
// float32 whatever the operands are, so scratch also holds a float32 copy of
// every BF16 operand. BF16 therefore saves device memory, which is its purpose
// here, but it saves the process neither time nor memory.
package host
