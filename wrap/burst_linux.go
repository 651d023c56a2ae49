package wrap

import (
	"time"

	"golang.org/x/sys/unix"
)

// burst notices that a child writes line by line as fast as it can. Waking the reader
// for each line costs the child more than writing it, so while that lasts the reader
// looks only every so often.
type burst struct {
	newest time.Time
	length int // reads that brought little and came soon after the one before
}

const (
	little = 4 << 10
	soon   = time.Millisecond
	bursts = 16 // how many such reads make one
	every  = 200 * time.Microsecond
)

// add notes that n bytes were read; 0 or less is not a read.
func (b *burst) add(n int) {
	if n <= 0 {
		return
	}
	now := time.Now()
	if b.length++; n > little || now.Sub(b.newest) > soon {
		b.length = 0
	}
	b.newest = now
}

// gather waits a moment in a burst.
func (b *burst) gather() {
	if b.length >= bursts {
		_ = unix.Nanosleep(&unix.Timespec{Nsec: int64(every)}, nil) // or less, if a signal comes
	}
}
