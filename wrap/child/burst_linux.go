package child

import (
	"time"

	"golang.org/x/sys/unix"
)

// burst detects a child that writes line after line as fast as it can. Waking the reader
// for each line costs the child more time than writing the line, so during a burst the
// reader pauses before each read.
type burst struct {
	newest time.Time
	length int // number of small reads in a row, each soon after the previous one
}

const (
	little = 4 << 10                // most bytes that a read may return to count towards a burst
	soon   = time.Millisecond       // longest time since the previous such read
	bursts = 16                     // number of such reads in a row that make a burst
	every  = 200 * time.Microsecond // how long the reader pauses during a burst
)

// add records a read of n bytes. If n is 0 or less, nothing was read, and add ignores it.
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

// gather pauses during a burst, so that more output accumulates before the next read.
func (b *burst) gather() {
	if b.length >= bursts {
		_ = unix.Nanosleep(&unix.Timespec{Nsec: int64(every)}, nil) // a signal may end it early
	}
}
