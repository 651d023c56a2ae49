// Package device defines what training needs from a device: memory with
// statistics, copies, and the operations of the models. It also holds the
// caching allocator that every device uses, in pure Go over any [Source] of
// segments.
//
// Start with [Device]. Two rules shape it:
//
//   - Operations never allocate. Whatever an operation writes, scratch
//     included, is a tensor that the caller allocated. So the allocations of a
//     training step are exactly the caller's, and making each of them fail in
//     turn covers every way in which a step can run out of memory.
//   - Operations return no error. A device may run them some time after the
//     call. The first error is kept until [Device.Sync] returns it. Until then
//     the operations that update state (Fill, Add and the optimizers) do
//     nothing, downloads fail, and the results of other operations are
//     meaningless. A wrong shape is a mistake in the program and panics with
//     *[ShapeError] before anything runs.
//
// Weights, their gradients and statistics are F32. Activations and their gradients
// may be BF16, as in mixed precision (Micikevicius et al., 2018); whatever the
// types, sums are computed in F32 or better, and values stored as BF16 are rounded
// to nearest. Attention in BF16 may also round the probabilities to BF16, because
// they are factors of a matrix product.
//
// Tensors are flat, row-major and contiguous; their dimensions are arguments of
// each operation. Results do not depend on how many threads a device uses: the
// same inputs give the same bits on the same device.
package device
