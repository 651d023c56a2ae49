// Package search finds the largest micro-batch that fits into memory, in as few
// trials as it can. It is pure: it reads no clock, does no I/O and logs nothing;
// the caller says what a trial is.
//
// Start with [Largest]. It distinguishes two sizes: Fits, the largest that ran,
// and Recommended, the largest expected to leave a share of the capacity free,
// which is the one to train with. [Result.String] says what is known, and
// [Enough] looks at speed: the largest size is seldom worth its memory.
//
// # The assumption
//
// Memory grows with the micro-batch, and nearly as base + slope·n: weights,
// gradients and optimizer state once, activations for every sample. So the
// search starts small, draws a line through what it measured, approaches from
// below, and ends with a size that ran and the next one that did not:
//
//	1 8 26 30 31! | 30 30 28 28
//
// Of these sizes, 31 ran out of memory; after the bar, once the search was over,
// the largest and the recommended size were run twice more. While nothing says
// where the limit is, a probe is at most 16 times what has fitted: a trial far
// above the limit can take the machine down before the device refuses it.
//
// # What it promises
//
// A search makes at most ⌈log₂ K⌉+2 probes, K being the number of sizes to
// choose from ([Options.Bound]); then it confirms. Fits always ran, and Fails,
// if not 0, did not. Within the bound:
//
//   - A straight line whose capacity is known takes at most five probes, of
//     which at most one fails, for up to 65,536 sizes, and is exact.
//   - Otherwise the search is over when Fails is within 2 % of Fits, or next to
//     it. From 1,000 sizes on the bound is enough for that on curves that never
//     fall, such as those that rise in steps because allocators round; a step
//     that fills the capacity to the byte may cost a few percent more.
//   - With fewer sizes the bound may end it earlier: in one search in a thousand
//     where memory rises in steps, in one in a hundred where it jumps off a
//     line.
//
// A line is believed until a size fails that should fit according to it: an
// allocator that reserves in pieces fails before the line's limit. From then on
// steps below what failed grow, and no probe goes where its outcome would leave
// more sizes than the remaining probes can bisect. Peaks that are up to 3 % off
// the line cost two to four probes more. Without peaks the search multiplies the
// size until something fails, then bisects.
//
// Where a larger size fits and a smaller one does not, the assumption is false.
// The search ends within its bound all the same, at a size that ran, which need
// not be the largest size that fits.
//
// # Confirmation
//
// Fits, then Recommended, are probed [Options].Confirm times each after the
// search; these are Result.Probes[Result.Searched:]. If one fails, the failed
// size becomes Fails, the answer steps down to what the failure shows to be
// available, at least by a hundredth and twice as far each time, and is confirmed
// again. If a recommended size peaks so high that it does not leave the headroom,
// only that size steps down. So at most 2·Confirm·(⌈log₂ K⌉+4) probes go to confirmation.
//
// Without Options.Capacity, or where failures show that an allocator hands out
// less, the amount that failures show to be available takes its place, and headroom
// is a share of that amount.
package search
