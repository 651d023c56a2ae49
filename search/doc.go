// Package search finds the largest micro-batch that fits into memory, in as few
// trials as it can. It is pure: it reads no clock, does no I/O and logs nothing;
// what a trial is, the caller says.
//
// Start with [Largest]. It tells two sizes apart: Fits, the largest that ran,
// and Recommended, the largest expected to leave a share of the capacity free,
// which is the one to train with. [Enough] looks at speed instead: the largest
// size is seldom worth its memory.
//
// # The assumption
//
// Memory grows with the micro-batch, and nearly as base + slope·n: weights,
// gradients and optimizer state once, activations for every sample. So the
// search starts small, draws a line through what it measured, comes nearer from
// below, and ends with a size that ran and the next one that did not:
//
//	1 8 26 30 31! | 30 30 28 28
//
// Read: of these sizes 31 ran out of memory; behind the bar, after the search,
// the largest and the recommended size were run twice more. On an affine curve
// of known capacity five probes and one failure are enough, for ranges of up to
// 65,536 sizes.
//
// A trial far above the limit can take the machine down before the device
// refuses it, so none is made because Max is large. While nothing says where
// the limit is, a probe is at most 16 times what has fitted. Once peaks and the
// capacity say where, it goes there, which is far too high only on a curve that
// was a line so far and then jumps.
//
// # The bound
//
// A search makes at most ⌈log₂ K⌉+2 probes, K being the number of sizes to
// choose from ([Options.Bound]); then it confirms. Bisection is what keeps the
// bound when the line is wrong. Within it:
//
//   - Fits always ran, and Fails, if not 0, did not. Where Fails is not the next
//     size, or Tolerance away, the probes were spent: the largest that fits lies
//     between the two, or at Fits.
//   - An affine curve leaves no such gap.
//   - Other monotone curves may: of random ones, one search in eight does where
//     memory bends, and one in six where it jumps past the capacity from a size
//     for which the line promised room. Half of the gaps are below 0.4 % of the
//     size, nine in ten below 4 %, and all those tried were below three tenths. No
//     search that starts small can promise none: each small size that fits says
//     nothing certain about a wide range, and the bound has two probes to spare
//     over plain bisection, which begins in the middle of that range.
//   - Without peaks the search multiplies the size until something fails, then
//     bisects. It is exact for up to 64 sizes, and to within 2 % beyond.
//
// Memory that does not grow with the micro-batch breaks the assumption, not the
// search: where a larger size fits and a smaller one does not, it ends within
// its bound at a size that ran, which need not be the largest such size.
//
// # Noise
//
// Peaks, and what a size needs, may be off the line by up to 3 %. Then Tolerance
// is what makes a search short. Five probes and one failure are enough, for
// ranges of up to 65,536 sizes and known capacity, if it is
//
//	limit / 16 / (the share of the capacity that grows with the size)
//
// or more, rounded up: an eighth of the limit where half of the capacity is
// taken by what does not grow. This holds whatever the noise within 3 %; the
// tests try its extremes. The reason is that 3 % of the memory at the limit, in
// what is measured there and in what is needed there, is 6 % of the limit over
// that share. So the search starts at Min plus Tolerance, and each probe is the
// largest size whose failure would leave a size that is sure to fit, on every
// line through the peaks and their noise, within the tolerance: one failure ends
// it, and without one it gets ahead as far as it can. A tolerance of a sixteenth
// of the limit is enough for five searches in six where a quarter to a half
// does not grow; without one, the bound above is all that is promised (measured
// by bench/search).
//
// # Confirmation
//
// After the search Fits, then Recommended, are probed [Options].Confirm times
// each; Result.Probes[Result.Searched:] are these probes. If one fails, another
// process has come, or the size was on the edge: the failed size becomes Fails,
// the answer steps down to what the failure says is there, at least by about a
// hundredth and twice as far each time, and is confirmed anew. If a recommended
// size peaks above what it should leave, it alone steps down. So at most
// 2·Confirm·(⌈log₂ K⌉+4) probes confirm; 2·Confirm if nothing is wrong.
//
// # Capacity
//
// With Options.Capacity the limit can be aimed at from below. Without it some
// sizes must fail first: then what a failure says was needed, and what it says
// is there, take its place. They do so too where they are less than Capacity,
// because an allocator reserves 5 to 8 % more than it hands out and so fails
// early; headroom then counts from there. If neither is known, the peak of Fits
// stands in for the capacity.
package search
