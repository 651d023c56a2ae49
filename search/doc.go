// Package search finds the largest micro-batch that fits into memory, in as few
// trials as it can. It is pure: it reads no clock, does no I/O and logs nothing;
// the caller says what a trial is.
//
// Start with [Largest]. It distinguishes two sizes. Fits is the largest that ran.
// Recommended is the largest that is expected to leave a share of the capacity
// free; train with that one. [Result.String] says what is known. [Enough] looks at
// speed, because the largest size is seldom worth its memory.
//
// # The assumption
//
// Memory grows with the micro-batch, and nearly as base + slope·n: weights,
// gradients and optimizer state once, activations for every sample. So the
// search starts small, draws a line through what it measured, approaches the
// limit from below, and ends with a size that ran and the next one that did not:
//
//	1 8 26 30 31! | 30 30 28 28
//
// Here 31 ran out of memory. The sizes after the bar were run once the search was
// over: the largest and the recommended size, twice each. While nothing shows
// where the limit is, a probe is at most 16 times the largest size that has
// fitted: a trial far above the limit can take the machine down before the device
// refuses it.
//
// # What it promises
//
// A search makes at most ⌈log₂ K⌉+2 probes, where K is the number of sizes to
// choose from ([Options.Bound]). Then it confirms its answer. Fits always ran, and
// Fails, if not 0, did not. Within the bound:
//
//   - If memory is a straight line and the capacity is known, the search is exact.
//     For up to 65,536 sizes it takes at most five probes, of which at most one
//     fails.
//   - Otherwise the search is over when Fails is within 2 % of Fits, or next to
//     it. From 1,000 sizes on, the bound is enough for that if memory never falls
//     as the size grows; it may rise in steps, as it does where allocators round.
//     A step that fills the capacity to the byte may cost a few percent more.
//   - With fewer sizes, the bound may end the search earlier: in one search in a
//     thousand where memory rises in steps, and in one in a hundred where it jumps
//     off a line.
//
// The search believes a line until a size fails that should fit according to it: an
// allocator that reserves in pieces fails before the line's limit. From then on,
// the steps down from the size that failed grow with every further failure. Each
// probe is placed, where possible, so that the remaining probes can bisect the
// range that its outcome leaves. Peaks that are up to 3 % off the line cost two to
// four probes more. Without peaks, the search multiplies the size until something
// fails, then bisects.
//
// If a larger size fits and a smaller one does not, the assumption is false. The
// search still ends within its bound, at a size that ran, but this is not
// necessarily the largest size that fits.
//
// # Confirmation
//
// After the search, Fits is probed [Options].Confirm times, then Recommended; these
// probes are Result.Probes[Result.Searched:]. If one fails, the failed size becomes
// Fails. The answer then steps down to what the failure shows to be available: by
// at least a hundredth the first time, and by at least twice as much each further
// time. The new answer is confirmed in turn. If a recommended size peaks so high
// that it does not leave the headroom, only that size steps down. So confirmation
// takes at most 2·Confirm·(⌈log₂ K⌉+4) probes.
//
// If Options.Capacity is not known, or failures show that an allocator hands out
// less, the search uses the amount that failures show to be available instead, and
// the headroom is a share of that amount.
package search
