//go:build !linux

package command

// Startable returns nil and leaves the error to Start.
func (Line) Startable() error { return nil }
