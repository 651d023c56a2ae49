// Package exits works out why an attempt of a command ended, from the evidence that it left
// behind: its last output, the errors of its ranks, the kernel's counters and the memory of
// its GPUs. Start with [Classify]. It is pure, but for [ReadRankErrors].
package exits
