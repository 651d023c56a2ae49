package device

import "headroom/memory"

// Source is where a caching allocator gets its segments, such as the operating
// system or a CUDA driver. It is used from one goroutine.
type Source interface {
	// Reserve reserves n bytes at an address that is a multiple of 512. If
	// there is not enough memory, the error is a *memory.OutOfMemoryError or
	// wraps one. After any other error, the allocator does not try again.
	Reserve(n memory.Bytes) (Addr, error)
	// Release gives a segment of n bytes back.
	Release(a Addr, n memory.Bytes) error
	// Room reports how many bytes could be reserved now, how many this process
	// could hold if no other process held any, and how many other processes hold.
	Room() (free, capacity, foreign memory.Bytes)
}
