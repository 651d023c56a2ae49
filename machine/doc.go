// Package machine reports what there is where a program runs, as the system has
// it: memory and what control groups leave of it, disk, limits, and what would
// end a long run.
//
// Start with [Look], or with [LookAtMemory] and [Memory.Room] where only memory
// matters. Both change nothing, except for an empty file that Look makes and
// removes, and take milliseconds. What the system does not say is left out, never
// an error.
package machine
