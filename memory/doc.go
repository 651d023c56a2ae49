// Package memory holds the words that every other package uses for device
// memory: an amount ([Bytes]), a snapshot ([Stats]), an allocation that failed
// ([OutOfMemoryError]) and the reason why ([Verdict]).
//
// Start with [Diagnose]. It reads [Evidence], which is data alone, and says why
// memory ran out together with the numbers that convinced it. It is a pure
// function: it reads no clock, asks no device and keeps no state, and "unknown"
// is one of its answers.
//
// The terms, used in the same sense everywhere:
//
//	allocated  bytes that live tensors hold
//	reserved   bytes that the caching allocator has taken from the device
//	capacity   bytes that the allocator may reserve when nobody else is there
//	free       bytes that could still be reserved now
//	foreign    bytes that other processes hold
//	peak       the largest allocated since the last reset
//	headroom   capacity − peak
//
// The package is a leaf: it imports nothing of this module.
package memory
