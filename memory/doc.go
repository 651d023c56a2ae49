// Package memory defines the terms that every other package uses for device memory:
// an amount ([Bytes]), a snapshot ([Stats]), an allocation that failed
// ([OutOfMemoryError]) and the reason why ([Verdict]).
//
// Start with [Diagnose]. It takes [Evidence], which is plain data, and says why
// memory ran out, with the numbers that support the verdict. It is a pure function:
// it reads no clock, asks no device and keeps no state. "Unknown" is one of its
// answers.
//
// The terms, used in the same sense everywhere:
//
//	allocated  bytes that live tensors hold
//	reserved   bytes that the caching allocator has taken from the device
//	capacity   bytes that the allocator may reserve when no other process uses the device
//	free       bytes that could still be reserved now
//	foreign    bytes that other processes hold
//	peak       the largest number of allocated bytes since the last reset
//	headroom   capacity − peak
//
// The package is a leaf: it imports nothing of this module.
package memory
