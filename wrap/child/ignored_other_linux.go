//go:build !cgo

package child

// keepIgnored does nothing. Without cgo, headroom cannot find out which signals were
// ignored when this process was started. Go's runtime leaves SIGHUP and SIGINT ignored
// if they were.
func keepIgnored() {}
