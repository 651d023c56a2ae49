// Package machine reports what the machine that a program runs on has to offer, according
// to the system: memory and what control groups leave of it, disk, limits, and what would
// end a long run.
//
// Start with [Look], or with [LookAtMemory] and [Memory.Room] where only memory
// matters. Both change nothing, except for an empty file that Look makes and
// removes, and take milliseconds. What the system does not say is left out, never
// an error.
package machine
