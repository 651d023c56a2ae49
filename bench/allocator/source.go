package main

import (
	"headroom/device"
	"headroom/memory"
)

// counter is a source of addresses that have no memory behind them. It counts the
// segments that an allocator asks for and the segments that it gives back, numbers that
// the driver does not report.
type counter struct {
	room, held         memory.Bytes
	next               device.Addr
	reserves, releases int64
}

func (c *counter) Reserve(n memory.Bytes) (device.Addr, error) {
	if n > c.room-c.held {
		return 0, &memory.OutOfMemoryError{Requested: n}
	}
	c.next = max(c.next, 1<<21)
	at := c.next
	c.next += device.Addr(n+1<<21-1) >> 21 << 21 // a driver aligns to pages
	c.held += n
	c.reserves++
	return at, nil
}

func (c *counter) Release(_ device.Addr, n memory.Bytes) error {
	c.held -= n
	c.releases++
	return nil
}

func (c *counter) Room() (free, capacity, foreign memory.Bytes) { return c.room - c.held, c.room, 0 }
