package memory

// Stats is what is known about a device's memory at one moment, as seen by one
// process. All amounts are in bytes; an amount that cannot be known is 0.
type Stats struct {
	Capacity     Bytes `json:"capacity"`      // what may be reserved when no other process uses the device: the limit, or the whole device
	Free         Bytes `json:"free"`          // what could still be reserved now
	Reserved     Bytes `json:"reserved"`      // taken from the device by the caching allocator
	Allocated    Bytes `json:"allocated"`     // held by live tensors
	LargestFree  Bytes `json:"largest_free"`  // largest block that the cache could hand out without reserving more
	Foreign      Bytes `json:"foreign"`       // held by other processes
	Peak         Bytes `json:"peak"`          // largest Allocated since the last reset
	PeakReserved Bytes `json:"peak_reserved"` // largest Reserved since the last reset
	Retries      int64 `json:"retries"`       // allocations that succeeded only after the cache was emptied
	Failures     int64 `json:"failures"`      // allocations that failed
}

// Available returns the most memory that this process can hold right now: its
// capacity minus the part that other processes have taken. It is never negative.
func (s Stats) Available() Bytes {
	return max(0, min(s.Capacity, s.Reserved+s.Free))
}
