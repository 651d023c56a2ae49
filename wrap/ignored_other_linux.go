//go:build !cgo

package wrap

// keepIgnored does nothing: which signals were ignored when this process was started
// can no longer be known, except for SIGHUP and SIGINT, which Go's runtime leaves
// ignored.
func keepIgnored() {}
