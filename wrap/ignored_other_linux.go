//go:build !cgo

package wrap

// keepIgnored does nothing: what this process was started to ignore can no longer be
// told, but for SIGHUP and SIGINT, which Go's runtime leaves as they are.
func keepIgnored() {}
