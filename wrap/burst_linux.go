package wrap

import (
	"time"

	"golang.org/x/sys/unix"
)

// burst detects a child that writes line by line as fast as it can. Waking the reader
// for each line costs the child more than writing it, so during a burst the reader
// reads only every so often.
type burst struct {
	newest time.Time
	length int // consecutive reads that returned little, each soon after the previous one
}

const (
	little = 4 << 10
	soon   = time.Millisecond
	bursts = 16 // how many such reads make a burst
	every  = 200 * time.Microsecond
)

// add records that n bytes were read; an n of 0 or less is not a read.
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

// gather waits a moment during a burst, so that more output accumulates.
func (b *burst) gather() {
	if b.length >= bursts {
		_ = unix.Nanosleep(&unix.Timespec{Nsec: int64(every)}, nil) // or less, if a signal comes
	}
}
